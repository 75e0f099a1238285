"""Plans made without the planner: checked by rules written anew here, and measured against the planner's own."""

import math
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_client.contract import AtomicGroup, Plan, PlanOptions, PlanRequest, parse_strategy
from planner_client.errors import FallbackImpossible
from planner_client.fallback import FallbackBasis, KnownReplica, fallback_plan
from planner_client.rates import Rates, kind_of, rates_of
from planner_service.profiles import builtin_profiles
from planner_service.translate.planning import plan_request

PROFILE = builtin_profiles()["llama-7b-a100-40g"]
LONG_TAILED = [
    *(50 + (number * 97) % 700 for number in range(260)),
    *(750 + (number * 331) % 900 for number in range(60)),
    *(1700 + (number * 577) % 2400 for number in range(20)),
    6100,
    6200,
]
"""Lengths as real data has them: most short, few long."""


def solved(request: PlanRequest) -> Plan:
    ends_at = time.monotonic() + request.options.deadline_ms / 1000
    return plan_request(request, [PROFILE], remaining_ms=lambda: (ends_at - time.monotonic()) * 1000)


def request_for(held: list[int], strategy: str = "(4,1)x2,(1,4)x1,(2,2)x1", **changes: object) -> PlanRequest:
    fields = {
        "profile": PROFILE.name,
        "num_gpus": 16,
        "strategies": [parse_strategy(strategy)],
        "lengths": {"a": held[::2], "b": held[1::2]},
        "options": PlanOptions(deadline_ms=2000),
        **changes,
    }
    return PlanRequest.model_validate(fields)


@pytest.fixture(scope="module")
def last_good() -> Plan:
    return solved(request_for(LONG_TAILED))


def test_the_coefficients_behind_a_plans_times_are_found_again(last_good: Plan) -> None:
    found = rates_of(last_good)
    for replica in last_good.replicas:
        rates = found[kind_of(replica)]
        if len(replica.micro_batches) < 3:
            continue
        cost = next(own for own in PROFILE.layouts if (own.tp, own.cp, own.pp) == (replica.tp, replica.cp, replica.pp))
        assert rates.b_ms_per_token == pytest.approx(cost.b_ms_per_token, rel=1e-3)
        assert rates.a_ms_per_token2 == pytest.approx(cost.a_ms_per_token2, rel=1e-3, abs=1e-12)
        assert rates.c_ms == pytest.approx(cost.c_ms, rel=1e-3)


@pytest.mark.parametrize("strategy", ["(4,1)x2,(1,4)x1,(2,2)x1", "(4,1)x4", "(1,4)x4", "(2,2)x4"])
def test_a_fallback_predicts_what_the_planners_own_cost_model_says_and_is_not_far_from_its_plans(strategy: str) -> None:
    first = LONG_TAILED
    second = [length * 7 // 5 for length in LONG_TAILED]
    last = solved(request_for(first, strategy, options=PlanOptions(deadline_ms=2000, over_long="drop")))
    request = request_for(second, strategy, options=PlanOptions(deadline_ms=2000, over_long="drop"))
    best = solved(request)
    made = fallback_plan(FallbackBasis.of_plan(last), request)
    costs = {(own.tp, own.cp, own.pp): own for own in PROFILE.layouts}
    for replica in made.replicas:
        cost = costs[replica.tp, replica.cp, replica.pp]
        times = [
            cost.c_ms
            + sum(
                entry.count * (cost.a_ms_per_token2 * entry.length**2 + cost.b_ms_per_token * entry.length)
                for entry in micro_batch.sequences
            )
            for micro_batch in replica.micro_batches
        ]
        expected = math.fsum(times) + (replica.pp - 1) * max(times, default=0.0)
        assert replica.makespan_ms == pytest.approx(expected, rel=0.02)
    assert len(made.dropped) == len(best.dropped)
    assert made.makespan_ms <= 1.15 * best.makespan_ms


def test_a_fallback_is_labelled_as_one_and_claims_no_bound(last_good: Plan) -> None:
    made = fallback_plan(FallbackBasis.of_plan(last_good), request_for(LONG_TAILED, iteration=7))
    assert (made.solved_by, made.status, made.iteration) == ("fallback", "feasible", 7)
    assert (made.lower_bound_ms, made.gap, made.bound_scope, made.all_strategies_lower_bound_ms) == (None,) * 4
    assert made.strategy == last_good.strategy
    assert [replica.ranks for replica in made.replicas] == [replica.ranks for replica in last_good.replicas]
    assert made.simulated_ms == made.makespan_ms


def test_a_fallback_starts_from_a_strategy_alone_and_then_predicts_no_times() -> None:
    basis = FallbackBasis.of_strategy("(4,1)x2,(2,1)x4", max_tokens=[9000, 5000])
    made = fallback_plan(basis, request_for(LONG_TAILED))
    assert made.makespan_ms == 0.0
    loads = [sum(micro_batch.num_tokens for micro_batch in replica.micro_batches) for replica in made.replicas]
    assert min(loads[:2]) > 1.5 * max(loads[2:])
    assert [replica.ranks for replica in made.replicas][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_tokens": [1, 2, 3]}, "one number from 1 for each"),
        ({"max_tokens": 0}, "one number from 1 for each"),
        ({"max_tokens": 10, "ranks": [[0], [1]]}, "name each rank once"),
        ({"max_tokens": 10, "ranks": [[0, 1], [1, 2]]}, "name each rank once"),
    ],
)
def test_a_start_that_contradicts_itself_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FallbackBasis.of_strategy("(2,1)x2", **arguments)  # type: ignore[arg-type]  # what must be refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_gpus": 32}, "it is for 16 GPUs but the request has 32"),
        ({"profile": "llama-7b-a800-80g"}, "it is for llama-7b-a100-40g but the request is for llama-7b-a800-80g"),
        ({"options": {"homogeneous": True}}, "is not homogeneous"),
        ({"options": {"allowed_layouts": [{"tp": 4, "pp": 1}]}}, "layouts that the request does not allow"),
        (
            {"lengths": [10**6]},
            r"local has a sequence of 1000000 tokens but without the planner the limit is \d+, the ",
        ),
        ({"lengths": [900], "options": {"max_length": 800}}, "the limit is 800, the max_length of the request"),
        ({"lengths": [300] * 3, "options": {"equal_micro_batch_counts": True}}, "needs 1 to run"),
        ({"lengths": [300] * 3, "options": {"idle_replicas": "forbid"}}, "needs 1 to run"),
        ({"lengths": [300], "options": {"micro_batch_count_multiple": 4}}, "needs 4 to run"),
    ],
)
def test_what_a_fallback_cannot_keep_is_refused_with_the_numbers(
    changes: dict[str, object], said: str, last_good: Plan
) -> None:
    with pytest.raises(FallbackImpossible, match=said):
        fallback_plan(FallbackBasis.of_plan(last_good), request_for([300, 300], **changes))


def test_a_batch_too_large_to_look_at_one_by_one_is_refused(last_good: Plan) -> None:
    many = {"lengths": None, "histograms": {"a": {"lengths": [100], "counts": [10**9]}}}
    with pytest.raises(FallbackImpossible, match="1000000000 sequences, and without the planner at most 1000000"):
        fallback_plan(FallbackBasis.of_plan(last_good), request_for([1], **many))


def test_over_long_sequences_are_dropped_and_listed_where_that_is_allowed(last_good: Plan) -> None:
    request = request_for([300, 10**6, 300, 10**6], options={"over_long": "drop"})
    made = fallback_plan(FallbackBasis.of_plan(last_good), request)
    assert [(entry.source, entry.length, entry.count) for entry in made.dropped] == [("b", 10**6, 2)]
    assert made.num_sequences == 2


def test_a_group_that_fits_nowhere_is_dropped_whole_or_refused(last_good: Plan) -> None:
    largest = max(replica.max_tokens for replica in last_good.replicas)
    groups = {"a": [AtomicGroup(lengths=[largest, 300])]}
    lengths = {"a": [largest, 300, 300], "b": [200]}
    request = request_for([1], lengths=lengths, atomic_groups=groups, options={"over_long": "drop"})
    made = fallback_plan(FallbackBasis.of_plan(last_good), request)
    assert [(entry.length, entry.count) for entry in made.dropped] == [(300, 1), (largest, 1)]
    strict = request.model_copy(update={"options": PlanOptions()})
    with pytest.raises(FallbackImpossible, match="an atomic group of a takes"):
        fallback_plan(FallbackBasis.of_plan(last_good), strict)


KINDS = [(1, 1, 1), (2, 1, 1), (1, 1, 2), (2, 1, 2), (1, 1, 4)]
replicas = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(10, 60), st.booleans()), min_size=1, max_size=5)
batches = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.lists(st.integers(1, 50), max_size=25), max_size=3)
options = st.builds(
    PlanOptions,
    alignment=st.sampled_from([1, 1, 4, 8]),
    max_length=st.none() | st.integers(5, 60),
    over_long=st.sampled_from(["drop", "drop", "reject"]),
    max_tokens_per_micro_batch=st.none() | st.integers(8, 80),
    cost=st.sampled_from(["packed", "padded"]),
    equal_micro_batch_counts=st.booleans(),
    micro_batch_count_multiple=st.sampled_from([1, 1, 2, 3]),
    at_least_stages=st.booleans(),
    idle_replicas=st.sampled_from(["allow", "forbid"]),
)


def basis_of(drawn: list[tuple[tuple[int, int, int], int, bool]], rates: Rates | None) -> FallbackBasis:
    first, known = 0, []
    for (tp, cp, pp), max_tokens, _ in drawn:
        known.append(KnownReplica(tp, cp, pp, "d", tuple(range(first, first + tp * cp * pp)), max_tokens, rates))
        first += tp * cp * pp
    return FallbackBasis(tuple(known), "hand-made")


@settings(max_examples=400, deadline=None)
@given(
    drawn=replicas,
    batch=batches,
    asked=options,
    rates=st.none() | st.builds(Rates, st.floats(0, 1), st.floats(0, 9), st.floats(0, 50)),
    seed=st.randoms(use_true_random=False),
)
def test_whatever_the_batch_and_the_options_a_fallback_keeps_its_promises(
    drawn: list[tuple[tuple[int, int, int], int, bool]],
    batch: dict[str, list[int]],
    asked: PlanOptions,
    rates: Rates | None,
    seed: "object",
) -> None:
    """Either it is refused, or:

    1. Every sequence stands in it once: in one micro-batch, or among the dropped, which the policy allows.
    2. No micro-batch is over its replica's limit, alignment and padding to the longest counted.
    3. Atomic groups are whole.
    4. Numbers of micro-batches are as the options ask.
    5. The same again gives the same plan, whatever the order of sources and sequences.
    6. Only what is over every replica's limit or the longest allowed is dropped, or belongs to a group that is.
    """
    groups = {source: [AtomicGroup(lengths=own[:3])] for source, own in batch.items() if len(own) > 4 and sum(own) % 2}
    basis = basis_of(drawn, rates)
    num_gpus = sum(len(replica.ranks) for replica in basis.replicas)
    fields = {"profile": "p", "num_gpus": num_gpus, "options": asked, "atomic_groups": groups or None}
    request = PlanRequest.model_validate({**fields, "lengths": batch})
    try:
        made = fallback_plan(basis, request)
    except FallbackImpossible:
        return
    micro_batches = [(replica, held) for replica in made.replicas for held in replica.micro_batches]
    placed: Counter[tuple[str, int]] = Counter()
    together: Counter[tuple[str, tuple[int, ...]]] = Counter()
    limit = asked.max_tokens_per_micro_batch or 10**9
    for replica, held in micro_batches:
        taken = []
        for entry in held.sequences:
            placed[entry.source, entry.length] += entry.count
            taken += [math.ceil(entry.length / asked.alignment) * asked.alignment] * entry.count
        tokens = max(taken) * len(taken) if asked.cost == "padded" else sum(taken)
        assert tokens <= min(replica.max_tokens, limit)
        for group in held.groups:
            together[group.source, tuple(group.lengths)] += group.count
    dropped = Counter({(entry.source, entry.length): entry.count for entry in made.dropped})
    assert placed + dropped == Counter((source, length) for source, own in batch.items() for length in own)
    assert not dropped or asked.over_long == "drop"
    largest = min(limit, max(replica.max_tokens for replica in basis.replicas))
    for source, length in dropped:
        is_over = math.ceil(length / asked.alignment) * asked.alignment > largest or length > (asked.max_length or 99)
        assert is_over or any(length in group.lengths for group in groups.get(source, []))
    for source, own in groups.items():
        key = (source, tuple(sorted(own[0].lengths)))
        assert together[key] == 1 or all(dropped[source, length] for length in key[1])
    counts = [len(replica.micro_batches) for replica in made.replicas]
    assert all(count % asked.micro_batch_count_multiple == 0 for count in counts)
    assert not asked.equal_micro_batch_counts or len(set(counts)) == 1
    assert not asked.at_least_stages or all(not n or n >= own.pp for n, own in zip(counts, made.replicas, strict=True))
    assert asked.idle_replicas == "allow" or all(counts)
    shuffled = {source: own[:] for source, own in reversed(batch.items())}
    for own in shuffled.values():
        seed.shuffle(own)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    again = PlanRequest.model_validate({**fields, "lengths": shuffled})
    assert fallback_plan(basis, again).model_dump_json() == made.model_dump_json()


def test_an_ordinary_batch_is_never_refused_whatever_the_layouts() -> None:
    lengths = [1 + (number * 37) % 40 for number in range(120)]
    for drawn in ([((1, 1, 1), 60, True)] * 4, [((1, 1, 4), 50, True), ((2, 1, 1), 60, True)]):
        for asked in (
            PlanOptions(equal_micro_batch_counts=True, micro_batch_count_multiple=2, at_least_stages=True),
            PlanOptions(idle_replicas="forbid", cost="padded"),
            PlanOptions(micro_batch_count_multiple=3),
        ):
            basis = basis_of(drawn, Rates(0.001, 0.1, 1.0))
            num_gpus = sum(len(replica.ranks) for replica in basis.replicas)
            request = PlanRequest(profile="p", num_gpus=num_gpus, lengths=lengths, options=asked)
            assert fallback_plan(basis, request).num_sequences == 120
