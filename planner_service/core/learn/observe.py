"""Takes in what one report of times says: one state to the next."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from planner_service.core.learn.belief import believed_cost
from planner_service.core.learn.buffer import keep
from planner_service.core.learn.measured import (
    Kind,
    Registered,
    Run,
    Sample,
    is_credible,
    ratio_of,
    weighted_median,
)
from planner_service.core.learn.slowness import Measured, compared, level_of, slow_ranks
from planner_service.core.learn.state import (
    FEWEST_SAMPLES,
    DeviceState,
    KindState,
    LearnerState,
    with_kinds,
)

WINDOW = 4
"""Iterations that are looked at together: a change counts when it shows in all of them, and samples wait as long."""

MAX_RECENT_SAMPLES = 512
"""Most samples of one report that are kept, spread over its replicas."""

SHIFTED = 1.15
"""All kinds of a type of GPU take so many times as long as believed, or the reverse: they have become slower, or
faster."""

STRANGE = 1.25
"""Samples of a replica that was so many times slower or faster than those beside it teach nothing."""

DRIFTS_FROM = 1.15
"""A type of GPU so many times off what was registered drifts, once that lasts."""

DRIFTS_TO = 1.1
"""One that drifts is told to do so until it is no further off than this."""

DRIFTS_AFTER = 10
"""Iterations that it lasts before it is told."""


def observe(state: LearnerState, registered: Registered, runs: Iterable[Run], cursor: int) -> LearnerState:
    """Take in measured replicas.

    Parameters
    ----------
    state
        What was known before.
    registered
        What the job was registered with.
    runs
        Replicas of one iteration; those of kinds or ranks that the job does not have are left out, and micro-batches
        whose times cannot be.
    cursor
        Number of the report in the store.
    """
    new = [run for run in map(_credible, runs) if run.kind in registered.costs and run.samples]
    if not new:
        return replace(state, cursor=cursor)
    is_another = new[0].iteration not in state.iterations()
    state = replace(
        state,
        cursor=cursor,
        recent=_merged(state.recent, _thinned(new)),
        num_iterations=state.num_iterations + is_another,
    )
    state = _shifted(state, registered)
    if is_another:
        state = _taught(state, registered)
    slow = slow_ranks(state, compared(state, registered), new[0].iteration, is_another=is_another)
    state = replace(state, slow=slow)
    return _with_drift(state, registered) if is_another else state


def _credible(run: Run) -> Run:
    samples = tuple(sample for sample in run.samples if is_credible(sample[2]))
    return run if len(samples) == len(run.samples) else replace(run, samples=samples)


def _thinned(runs: Sequence[Run]) -> list[Run]:
    """Leave out some micro-batches of large reports, evenly."""
    most = max(2, MAX_RECENT_SAMPLES // len(runs))
    return [replace(run, samples=_spread(run.samples, most)) for run in runs]


def _spread(samples: tuple[Sample, ...], most: int) -> tuple[Sample, ...]:
    if len(samples) <= most:
        return samples
    return tuple(samples[round(number * (len(samples) - 1) / (most - 1))] for number in range(most))


def _merged(recent: tuple[Run, ...], new: Iterable[Run]) -> tuple[Run, ...]:
    """Add runs; of a replica that several ranks reported, the slowest report counts."""
    found = {(run.iteration, run.ranks): run for run in recent}
    for run in new:
        old = found.get((run.iteration, run.ranks))
        if old is None or run.total_ms > old.total_ms:
            found[run.iteration, run.ranks] = run
    return tuple(found.values())


def _shifted(state: LearnerState, registered: Registered) -> LearnerState:
    """Scale what is believed of a type of GPU whose kinds are all off by the same, iteration after iteration."""
    for device in registered.ranks:
        levels = _levels(state, registered, device)
        if len(levels) < WINDOW or not (min(levels) > SHIFTED or max(levels) < 1 / SHIFTED):
            continue
        factor = sorted(levels)[(len(levels) - 1) // 2]
        own = state.of_device(device)
        changed = [_scaled(known, factor) for known in state.kinds if known.kind.device == device]
        last = set(state.iterations()[-WINDOW:])
        state = replace(
            state,
            recent=tuple(
                run if run.iteration in last or run.kind.device != device else _scaled_run(run, factor)
                for run in state.recent
            ),
            kinds=with_kinds(state.kinds, changed),
            devices=_with_device(state, replace(own, scale=own.scale * factor)),
        )
    return state


def _levels(state: LearnerState, registered: Registered, device: str) -> list[float]:
    """Return how many times as long as believed a type's replicas took, for each recent iteration that had any."""
    factors = state.factors
    known = {own.kind for own in state.kinds if own.cost is not None}
    found = []
    for iteration in state.iterations():
        like_most = [
            (run, ratio_of(run, state.cost_of(run.kind, registered)))
            for run in state.recent
            if (run.iteration, run.kind.device) == (iteration, device) and factors.keys().isdisjoint(run.ranks)
        ]
        level = level_of(like_most, known)
        if level is not None:
            found.append(level)
    return found[-WINDOW:]


def _scaled(known: KindState, factor: float) -> KindState:
    cost = None if known.cost is None else known.cost.times(factor)
    return replace(known, samples=_all_times(known.samples, factor), cost=cost)


def _scaled_run(run: Run, factor: float) -> Run:
    return replace(run, samples=_all_times(run.samples, factor))


def _all_times(samples: tuple[Sample, ...], factor: float) -> tuple[Sample, ...]:
    return tuple((squares, tokens, time_ms * factor) for squares, tokens, time_ms in samples)


def _taught(state: LearnerState, registered: Registered) -> LearnerState:
    """Let the samples of iterations that leave the window count, and believe what they say."""
    iterations = state.iterations()
    leaving = set(iterations[:-WINDOW])
    new: dict[Kind, list[Sample]] = {}
    for entry in compared(state, registered):
        if entry.run.iteration in leaving and _teaches(entry, state):
            new.setdefault(entry.run.kind, []).extend(_of_most(entry, state))
    state = replace(state, recent=tuple(run for run in state.recent if run.iteration not in leaving))
    changed = []
    for kind, samples in new.items():
        known = state.of_kind(kind)
        held = keep(known.samples, samples)
        num_samples = known.num_samples + len(samples)
        cost = known.cost
        if num_samples >= FEWEST_SAMPLES:
            cost = believed_cost(held, registered.costs[kind])
        changed.append(KindState(kind, held, num_samples, cost))
    state = replace(state, kinds=with_kinds(state.kinds, changed))
    for device in {kind.device for kind in new}:
        state = replace(state, devices=_with_device(state, _rescaled(state, registered, device)))
    return state


def _teaches(entry: Measured, state: LearnerState) -> bool:
    """Whether a run says what its kind takes on ranks like most."""
    is_known = state.of_kind(entry.run.kind).cost is not None
    if not state.factors.keys().isdisjoint(entry.run.ranks):
        return not is_known
    relative = entry.relative if entry.relative is not None else 1.0
    return 1 / STRANGE < relative < STRANGE


def _of_most(entry: Measured, state: LearnerState) -> tuple[Sample, ...]:
    """Return a run's samples as they would be on ranks like most."""
    return _all_times(entry.run.samples, 1 / max(state.factors.get(rank, 1.0) for rank in entry.run.ranks))


def _rescaled(state: LearnerState, registered: Registered, device: str) -> DeviceState:
    """Return a type whose scale is what its known kinds say together."""
    own = state.of_device(device)
    offs = [
        (off, float(known.num_samples))
        for known in state.kinds
        if known.kind.device == device and known.cost is not None and (off := _off(known, registered)) is not None
    ]
    return replace(own, scale=weighted_median(offs)) if offs else own


def _off(known: KindState, registered: Registered) -> float | None:
    """Return how many times as long as registered a known kind's usual micro-batches take."""
    cost = registered.costs[known.kind]
    pairs = [
        (known.cost.time_ms(squares, tokens) / before_ms, before_ms)
        for squares, tokens, _ in known.samples
        if known.cost is not None and (before_ms := cost.time_ms(squares, tokens)) > 0
    ]
    return weighted_median(pairs) if pairs else None


def _with_device(state: LearnerState, changed: DeviceState) -> tuple[DeviceState, ...]:
    by_name = {own.device: own for own in state.devices} | {changed.device: changed}
    return tuple(by_name[name] for name in sorted(by_name))


def _with_drift(state: LearnerState, registered: Registered) -> LearnerState:
    """Count for how long types of GPU are far from what was registered."""
    for device in registered.ranks:
        own = state.of_device(device)
        is_off = max(own.scale, 1 / own.scale) > (DRIFTS_TO if own.is_drifting else DRIFTS_FROM)
        num_off = own.num_off + 1 if is_off else 0
        changed = replace(own, num_off=num_off, is_drifting=num_off >= DRIFTS_AFTER)
        if changed != own:
            state = replace(state, devices=_with_device(state, changed))
    return state
