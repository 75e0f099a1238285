"""All scenarios that one launch of four real ranks runs, by name; the test modules look at what they report."""

import dataclasses
import itertools
from collections.abc import Sequence

import torch
from plan_factory import make_plan, random_plan, reseal
from scenarios import CONFIG, MEDDLINGS, Breakage, Mute, Scenario, make_tokens

from planner_client.contract import Plan, PlanRequest
from planner_client.groups import atomic_groups_of
from planner_service.translate import plan_request
from worker_agent.executor.shape import DecoderConfig

WORLD_SIZE = 4
LENGTHS = {"rank-0": [11, 3, 1, 8, 3], "rank-1": [30, 3, 2, 1], "rank-2": [5, 5, 17, 40]}
HELD = {source: make_tokens(lengths, seed) for seed, (source, lengths) in enumerate(LENGTHS.items())}

GROUPS = {"rank-0": [[4, 0], [1, 2]], "rank-2": [[1, 2]]}
"""Of each pair of equal lengths in a source, the second is in a group: who does not heed groups takes the first."""

Layout = tuple[int, int, tuple[int, ...]]
"""(tp, pp, ranks) of a replica."""


def hetero_plan(replicas: Sequence[Layout], seed: int, *, alignment: int = 1, idle: Sequence[Layout] = ()) -> Plan:
    """Assign `LENGTHS` at random to replicas of these layouts; the idle ones come first and get nothing."""
    plan = random_plan(LENGTHS, len(replicas), seed, alignment=alignment, ranks=[ranks for *_, ranks in replicas])
    empty = make_plan([[] for _ in idle], ranks=[ranks for *_, ranks in idle])
    laid_out = [
        replica.model_copy(update={"tp": tp, "pp": pp})
        for replica, (tp, pp, _) in zip([*empty.replicas, *plan.replicas], [*idle, *replicas], strict=True)
    ]
    return reseal(plan, replicas=laid_out, strategy="by hand")


def grouped_plan(layouts: Sequence[tuple[int, int]]) -> Plan:
    """Let the planner assign `LENGTHS` and keep `GROUPS` together."""
    costs = {"a_ms_per_token2": 1e-3, "b_ms_per_token": 0.05, "c_ms": 0.2, "max_tokens": 48}
    request = {
        "profile": {
            "name": "by-hand",
            "source": "made up",
            "model": {"name": "tiny", "num_layers": 5, "hidden_size": 16, "vocab_size": 23},
            "device": {"name": "CPU core", "memory_bytes": 2**30},
            "layouts": [{"tp": tp, "pp": pp, **costs} for tp, pp in set(layouts)],
        },
        "num_gpus": WORLD_SIZE,
        "strategies": [[{"tp": tp, "pp": pp, "num_replicas": 1} for tp, pp in layouts]],
        "lengths": LENGTHS,
        "atomic_groups": {source: atomic_groups_of(LENGTHS[source], groups) for source, groups in GROUPS.items()},
    }
    checked = PlanRequest.model_validate(request)
    plan = plan_request(checked, [checked.profile], remaining_ms=lambda: 1e9)
    assert any(one.groups for replica in plan.replicas for one in replica.micro_batches)
    return plan


def arrival_order_plan() -> Plan:
    """Every rank keeps what it holds, one sequence a micro-batch."""
    return make_plan([[[(source, length, 1)] for length in lengths] for source, lengths in LENGTHS.items()])


DATA_PARALLEL = {
    "arrival order": arrival_order_plan(),
    **{
        f"random plan {seed}, {num_replicas} replicas, alignment {alignment}": random_plan(
            LENGTHS, num_replicas, seed, alignment=alignment, ranks=[[2], [0], [1]][:num_replicas]
        )
        for seed, (num_replicas, alignment) in enumerate(itertools.product((3, 2, 1), (1, 8)))
    },
}
LAYOUTS = {
    "tp2": hetero_plan([(2, 1, (0, 1)), (2, 1, (2, 3))], 1),
    "tp4, more ranks than key-value heads": hetero_plan([(4, 1, (3, 1, 0, 2))], 2),
    "pp2": hetero_plan([(1, 2, (0, 1)), (1, 2, (3, 2))], 3),
    "pp4": hetero_plan([(1, 4, (0, 1, 2, 3))], 4),
    "tp2 and pp2": hetero_plan([(2, 2, (0, 1, 2, 3))], 5, alignment=8),
    "tp2 next to two of tp1": hetero_plan([(2, 1, (1, 2)), (1, 1, (0,)), (1, 1, (3,))], 6),
    "pp3 next to tp1": hetero_plan([(1, 3, (2, 0, 3)), (1, 1, (1,))], 7, alignment=4),
    "tp2 with idle ranks": hetero_plan([(2, 1, (3, 0))], 8),
    "pp2 next to an idle replica of tp2": hetero_plan([(1, 2, (0, 1))], 9, idle=[(2, 1, (2, 3))]),
}
GROUPED = {
    "atomic groups": [(1, 1)] * 3,
    "atomic groups, tp2 next to pp2": [(2, 1), (1, 2)],
}
TIED = dataclasses.replace(CONFIG, tied_embeddings=True)
STRADDLING = DecoderConfig(vocab_size=23, hidden_size=24, num_layers=2, num_heads=12, num_kv_heads=4, ffn_size=17)
SWITCHING = tuple(LAYOUTS[name] for name in ("tp2", "pp4", "tp2 next to two of tp1", "tp2 and pp2", "pp2"))
EVALUATED = tuple(LAYOUTS[name] for name in ("tp2 and pp2", "pp3 next to tp1", "tp2 with idle ranks"))
OTHER_MODELS = {
    "tied embeddings": Scenario((DATA_PARALLEL["arrival order"],), HELD, config=TIED),
    "tied embeddings, tp2": Scenario((LAYOUTS["tp2"],), HELD, config=TIED),
    "tied embeddings, pp4": Scenario((LAYOUTS["pp4"],), HELD, config=TIED),
    "tied embeddings, tp2 and pp2": Scenario((LAYOUTS["tp2 and pp2"],), HELD, config=TIED),
    "key-value heads that straddle ranks": Scenario(
        (hetero_plan([(3, 1, (0, 1, 2)), (1, 1, (3,))], 10),), HELD, config=STRADDLING
    ),
}
SMALL = {"rank-0": make_tokens([11], 7), "rank-1": make_tokens([101], 8)}
ELEVEN_AND_101 = make_plan([[[("rank-0", 11, 1)]], [[("rank-1", 101, 1)]]])
NOTHING = make_plan([[], []])
ONLY_SINGLES = make_plan([[[("rank-0", 1, 1)]], [[("rank-1", 1, 2)]]])
SINGLES = {"rank-0": make_tokens([1], 1), "rank-1": make_tokens([1, 1], 2)}
DROPPING = make_plan([[[("rank-0", 3, 1), ("rank-1", 4, 1)]]], dropped=[("rank-0", 9, 1), ("rank-0", 3, 1)])
DROPPED_FROM = {"rank-0": make_tokens([9, 3, 3], 4), "rank-1": make_tokens([4], 5)}
ELSEWHERE = make_plan([[[("node-a", 6, 1), ("node-b", 4, 1)]], [[("node-b", 4, 1)]]])
ELSEWHERE_HELD = {"node-a": make_tokens([6], 1), "node-b": make_tokens([4, 4], 2)}
TWO_ENTRIES = make_plan([[[("rank-0", 7, 1), ("rank-1", 9, 1)]]])
TWO_ENTRIES_HELD = {"rank-0": make_tokens([7], 5), "rank-1": make_tokens([9], 6)}
MICRO_BATCHES = [[("rank-0", 3, 1)], [("rank-1", 4, 1)], [("rank-0", 5, 1)]]
STAGED = make_plan([MICRO_BATCHES], ranks=[[0, 1, 2, 3]], layout=(2, 1, 2))
STAGED_HELD = {"rank-0": make_tokens([3, 5], 1), "rank-1": make_tokens([4], 2)}
PAIRS = tuple(make_plan([[[("rank-0", 3, 1)]]], ranks=[pair], layout=(2, 1, 1)) for pair in ([0, 1], [2, 3], [1, 2]))
PAIRS_HELD = {"rank-0": make_tokens([3], 3)}


def staged(breakage: Breakage) -> Scenario:
    """A replica of tp2 and pp2 over all ranks, in which something breaks in the first of two iterations."""
    return Scenario((STAGED, STAGED), STAGED_HELD, breakage=breakage)


FAULTS = {
    "different plans": Scenario((ELEVEN_AND_101,), SMALL, plan_by_rank={1: DATA_PARALLEL["arrival order"]}),
    "other sequences than planned": Scenario((ELEVEN_AND_101,), SMALL, held_by_rank={1: make_tokens([100], 0)}),
    "other sequences than planned, found ahead": Scenario(
        (ELEVEN_AND_101,), SMALL, held_by_rank={1: make_tokens([100], 0)}, ahead=True
    ),
    "different plans, found ahead": Scenario(
        (ELEVEN_AND_101,), SMALL, plan_by_rank={1: DATA_PARALLEL["arrival order"]}, ahead=True
    ),
    "no plan on one rank, found ahead": Scenario((ELEVEN_AND_101,), SMALL, plan_by_rank={1: None}, ahead=True),
    "one rank prepared another plan than it runs": Scenario(
        (ELEVEN_AND_101,), SMALL, prepared_by_rank={1: None}, ahead=True
    ),
    "no plan on any rank": Scenario((None,), SMALL),
    "groups left out": Scenario((grouped_plan([(1, 1)] * 3),), HELD),
    "groups of another source": Scenario((ELEVEN_AND_101,), SMALL, groups={"rank-0": [[0, 1]]}),
    "sequences that are no tensors": Scenario((ELEVEN_AND_101,), SMALL, held_by_rank={0: [[1] * 11]}),
    "no list of sequences": Scenario((ELEVEN_AND_101,), SMALL, held_by_rank={0: 5}),
    "a source of another rank": Scenario((ELEVEN_AND_101,), SMALL, held_by_rank={0: {"rank-1": SMALL["rank-1"]}}),
    "a token id outside the vocabulary": Scenario((ELEVEN_AND_101,), SMALL, held_by_rank={0: [torch.full((11,), 23)]}),
    "sequences that are no token ids": Scenario((ELEVEN_AND_101,), SMALL, held_by_rank={0: [torch.zeros(11)]}),
    "context parallelism": Scenario(
        (make_plan([[[("rank-0", 11, 1), ("rank-1", 101, 1)]]], ranks=[[0, 1]], layout=(1, 2, 1)),), SMALL
    ),
    "heads that do not divide": Scenario(
        (make_plan([[[("rank-0", 11, 1), ("rank-1", 101, 1)]]], ranks=[[0, 1, 2]], layout=(3, 1, 1)),), SMALL
    ),
    "more process groups than allowed": Scenario((LAYOUTS["tp2 and pp2"],), HELD, max_process_groups=1),
    "a forward that raises on one rank": Scenario((ELEVEN_AND_101,), SMALL, breakage=Breakage(1)),
    "a fault without a text": Scenario((ELEVEN_AND_101,), SMALL, breakage=Breakage(0, fault=Mute())),
    "text that is not Unicode": Scenario(
        (ELEVEN_AND_101,), SMALL, breakage=Breakage(0, fault=OSError("cannot read \udce9.bin"))
    ),
    "sources held elsewhere by one rank's account": Scenario(
        (ELEVEN_AND_101,), SMALL, rank_of_source_by_rank={2: {"rank-0": 0, "rank-1": 2}}, held_by_rank={2: []}
    ),
    "a gradient that overflows on one rank": Scenario((ELEVEN_AND_101,), SMALL, breakage=Breakage(0, when="overflow")),
    "a weight that is not a number": Scenario((LAYOUTS["tp2 and pp2"],), HELD, poisoned=True),
    **{f"meddling: {name}": Scenario((TWO_ENTRIES,), TWO_ENTRIES_HELD, meddling=name) for name in MEDDLINGS},
    # Stage 0 has three layers and stage 1 two, on two ranks each; three micro-batches, sequences of 3, 4 and 5 tokens.
    "a first stage that raises at once": staged(Breakage(0)),
    "a first stage that raises in the second forward": staged(Breakage(1, 4)),
    "a last stage that raises in the second forward": staged(Breakage(3, 3)),
    "a last stage that raises in a backward": staged(Breakage(2, 2, "backward")),
    "a first stage that raises in the last backward": staged(Breakage(0, 7, "backward")),
    "an evaluation that raises": dataclasses.replace(staged(Breakage(3, 1)), evaluates=True),
}
ADAM = Scenario(SWITCHING, HELD, optimizer="adam", max_norm=0.4)
SCENARIOS: dict[str, Scenario] = {
    **{name: Scenario((plan,), HELD) for name, plan in (DATA_PARALLEL | LAYOUTS).items()},
    **OTHER_MODELS,
    "fp32": Scenario((LAYOUTS["tp2 and pp2"],), HELD, dtype=torch.float32),
    "bf16": Scenario((LAYOUTS["tp2 and pp2"],), HELD, dtype=torch.float32, compute_dtype=torch.bfloat16),
    "11 and 101 tokens": Scenario((ELEVEN_AND_101,), SMALL),
    "another strategy every iteration": ADAM,
    "one strategy all the time": dataclasses.replace(ADAM, plans=(DATA_PARALLEL["arrival order"],) * len(SWITCHING)),
    "prepared ahead": dataclasses.replace(ADAM, ahead=True),
    "traced": Scenario((LAYOUTS["tp2 and pp2"],), HELD, traced=True),
    **{name: Scenario((grouped_plan(layouts),), HELD, groups=GROUPS) for name, layouts in GROUPED.items()},
    "atomic groups, prepared ahead": Scenario((grouped_plan([(1, 1)] * 3),), HELD, groups=GROUPS, ahead=True),
    "atomic groups, evaluated": Scenario((grouped_plan([(1, 1)] * 3),), HELD, groups=GROUPS, evaluates=True),
    "evaluation": Scenario(EVALUATED, HELD, evaluates=True),
    "no sequences": Scenario((NOTHING,), {}),
    "only sequences of one token": Scenario((ONLY_SINGLES,), SINGLES),
    "dropped sequences": Scenario((DROPPING,), DROPPED_FROM),
    "two sources on one rank": Scenario(
        (ELSEWHERE,), ELSEWHERE_HELD, rank_of_source={"node-a": 2, "node-b": 2}, held_by_rank={0: [], 1: [], 3: []}
    ),
    "few process groups": Scenario((*PAIRS, PAIRS[0], PAIRS[0], PAIRS[1]), PAIRS_HELD, max_process_groups=2),
    **FAULTS,
    "and the group still works": Scenario((ELEVEN_AND_101,), SMALL),
}

OFFERS: dict[str, list[Plan | Exception | None]] = {
    "a plan": [None, ELEVEN_AND_101, None, None],
    "its own on every rank": [NOTHING, ELEVEN_AND_101, NOTHING, NOTHING],
    "a fault": [None, TimeoutError("the planner did not answer within 500 ms"), None, None],
    "a fault without a text": [None, Mute(), None, None],
    "nothing": [NOTHING, None, NOTHING, NOTHING],
    "a changed plan": [None, ELEVEN_AND_101.model_copy(update={"num_tokens": 5}), None, None],
}
