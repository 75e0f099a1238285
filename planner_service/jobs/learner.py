"""Takes measured times in, one report after another, and puts what is learned of them into the store."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog
from pydantic import TypeAdapter

from planner_client.contract import IterationTimings, JobSpec, LearnedVersion, Plan, Profile
from planner_service.core.learn.decide import Decision, changes_of, decide, published
from planner_service.core.learn.measured import Registered
from planner_service.core.learn.observe import observe
from planner_service.core.learn.state import LearnerState
from planner_service.desk.canonical import canonical_json
from planner_service.desk.catalog import Catalog
from planner_service.desk.metrics import Metrics
from planner_service.store import JobUnknown, LearnedRow, MeasuredRow, Store, StoreUnavailable
from planner_service.translate.learned import registered_of, runs_of, version_of

NUM_AT_ONCE = 16
"""Reports that are taken in between two writes."""

MAX_TRIES = 1000

COUNTS_FOR_S = 3600.0
"""How long after its last report a job counts in this service's metrics."""

_STATE: TypeAdapter[LearnerState] = TypeAdapter(LearnerState)


def state_of(body: bytes | None) -> LearnerState:
    """Read a stored state; what nothing is stored of is as registered."""
    return LearnerState() if body is None else _STATE.validate_json(body)


@dataclass(frozen=True)
class _Seen:
    """What this service last saw of a job."""

    at: float
    is_drifting: bool
    num_slow: int


class Learner:
    """Moves what is learned of jobs on; several services may do so at once, and each report counts once.

    Parameters
    ----------
    store, catalog, metrics
        Where times and states are, where named profiles are, who counts.
    """

    def __init__(self, *, store: Store, catalog: Catalog, metrics: Metrics) -> None:
        self._store = store
        self._catalog = catalog
        self._metrics = metrics
        self._busy: dict[str, bool] = {}
        self._seen: dict[str, _Seen] = {}
        self._log = structlog.get_logger("hydraulis.learning")

    async def catch_up(self, job: str, spec: JobSpec) -> None:
        """Take in what was reported since the last time; raises nothing, since the times themselves are kept.

        Where this service is at it already for the job, it is told that there is more, and this returns at once.
        """
        if spec.learning == "off":
            return
        if job in self._busy:
            self._busy[job] = True
            return
        self._busy[job] = True
        try:
            profiles = await self.profiles_of(spec)
            while self._busy[job]:
                self._busy[job] = False
                await asyncio.to_thread(self._take_all_in, job, spec, profiles)
        except JobUnknown:
            self._seen.pop(job, None)
        except StoreUnavailable as failure:
            self._log.warning("learning_waits", job=job, detail=str(failure))
        except Exception:  # noqa: BLE001 - what is learned must not keep times from being reported
            self._log.exception("learning_failed", job=job)
        finally:
            del self._busy[job]
            self._count()

    async def profiles_of(self, spec: JobSpec) -> tuple[Profile, ...]:
        """Return the profiles that a job was registered with."""
        return tuple([await self._catalog.profile_of(pool) for pool in spec.pools])

    def reset(self, job: str, spec: JobSpec, profiles: Sequence[Profile]) -> LearnedVersion:
        """Forget what was learned of a job: plans are made with what was registered, as a version of its own. Blocks.

        Raises
        ------
        JobUnknown
            If there is no such job.
        """
        registered = registered_of(spec, profiles)
        for _ in range(MAX_TRIES):
            row = self._store.learning.state(job)
            before = state_of(None if row is None else row.body)
            state = LearnerState(cursor=before.cursor, version=before.version)
            changes = changes_of(state, registered)
            decision = Decision(("what was registered holds again, as was asked for",), tuple(changes), ())
            version = version_of(spec, profiles, decision, version=state.version + 1, iteration=None)
            if self._put(job, 0 if row is None else row.revision, published(state, decision), version):
                return version
        raise StoreUnavailable(f"what job {job} learns moves on faster than it can be reset; try again")

    def forget(self, job: str) -> None:
        """Do not count a job any more."""
        self._seen.pop(job, None)

    def _take_all_in(self, job: str, spec: JobSpec, profiles: Sequence[Profile]) -> None:
        registered = registered_of(spec, profiles)
        for _ in range(MAX_TRIES):
            row = self._store.learning.state(job)
            state = state_of(None if row is None else row.body)
            reports = self._store.learning.measured(job, after=state.cursor, limit=NUM_AT_ONCE)
            if not reports:
                return
            version: LearnedVersion | None = None
            for report in reports:
                try:
                    state, version = self._after(spec, profiles, registered, state=state, report=report)
                except (StoreUnavailable, JobUnknown):
                    raise
                except Exception:  # noqa: BLE001 - one report that cannot be used must not keep later ones out
                    self._log.exception("learning_failed", job=job, iteration=report.iteration)
                    state = replace(state, cursor=report.number)
                if version is not None:
                    break
            # Where another service was quicker, its state is read and what is left is taken in.
            if self._put(job, 0 if row is None else row.revision, state, version):
                self._saw(job, state)

    def _after(
        self,
        spec: JobSpec,
        profiles: Sequence[Profile],
        registered: Registered,
        *,
        state: LearnerState,
        report: MeasuredRow,
    ) -> tuple[LearnerState, LearnedVersion | None]:
        """Return what is known after one more report, and the version that it brings; None for none."""
        state = self._taken_in(spec.name, state, registered, report)
        decision = decide(state, registered)
        if decision is None:
            return state, None
        state = published(state, decision)
        version = version_of(spec, profiles, decision, version=state.version, iteration=report.iteration)
        # What cannot be read again would keep the job from being planned.
        LearnedVersion.model_validate_json(canonical_json(version))
        return state, version

    def _taken_in(self, job: str, state: LearnerState, registered: Registered, report: MeasuredRow) -> LearnerState:
        iteration = self._store.jobs.iteration(job, report.iteration)
        key = None if iteration is None else iteration.request_key
        plan = None if key is None else self._store.plans.of_request(key)
        if plan is None:
            return observe(state, registered, (), report.number)
        timings = IterationTimings.model_validate_json(report.body)
        runs = runs_of(Plan.model_validate_json(plan.body), timings, registered)
        return observe(state, registered, runs, report.number)

    def _put(self, job: str, revision: int, state: LearnerState, version: LearnedVersion | None) -> bool:
        row = None if version is None else LearnedRow(version.version, canonical_json(version))
        if not self._store.learning.advance(job, revision, _STATE.dump_json(state), row):
            return False
        if version is not None:
            self._metrics.learned_versions.inc()
            self._log.info(
                "learned", job=job, version=version.version, iteration=version.iteration, reasons=version.reasons
            )
        return True

    def _saw(self, job: str, state: LearnerState) -> None:
        was_drifting = job in self._seen and self._seen[job].is_drifting
        drifting = [own.device for own in state.devices if own.is_drifting]
        self._seen[job] = _Seen(time.monotonic(), bool(drifting), len(state.slow))
        if drifting and not was_drifting:
            factors = {own.device: round(own.scale, 3) for own in state.devices if own.is_drifting}
            self._log.warning("drift", job=job, factors=factors, remedy="measure the machine again (hydraulis profile)")

    def _count(self) -> None:
        now = time.monotonic()
        for job in [job for job, seen in self._seen.items() if now - seen.at > COUNTS_FOR_S]:
            del self._seen[job]
        seen = list(self._seen.values())
        self._metrics.observe_learning(sum(own.is_drifting for own in seen), sum(own.num_slow for own in seen))
