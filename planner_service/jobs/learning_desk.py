"""What callers are told of what a job learns, and how they make it forget."""

import asyncio
from functools import lru_cache

from planner_client.contract import (
    DeviceDrift,
    FaultCode,
    JobSpec,
    LearnedVersion,
    LearnedVersionList,
    LearnedVersionSummary,
    Learning,
)
from planner_service.core.faults import PlanningFault
from planner_service.core.learn.decide import changes_of
from planner_service.jobs.assemble import spec_of, unknown_job
from planner_service.jobs.learner import Learner, state_of
from planner_service.store import JobUnknown, LearnedRow, Store
from planner_service.translate.learned import cost_told, registered_of, slow_told


@lru_cache(maxsize=64)
def version_told(row: LearnedRow) -> LearnedVersion:
    """Read a stored version; the same few are read for every iteration."""
    return LearnedVersion.model_validate_json(row.body).model_copy(update={"created_at": row.created_at})


class LearningDesk:
    """Answers what concerns learning.

    Parameters
    ----------
    store, learner
        Where it is kept, and who moves it on.
    """

    def __init__(self, store: Store, learner: Learner) -> None:
        self._store = store
        self._learner = learner

    async def learning(self, job: str) -> Learning:
        """Return what is learned of a job by now.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``.
        """
        spec = await self._spec(job)
        profiles = await self._learner.profiles_of(spec)
        registered = registered_of(spec, profiles)
        row = await asyncio.to_thread(self._store.learning.state, job)
        state = state_of(None if row is None else row.body)
        return Learning(
            job=job,
            mode=spec.learning,
            version=state.version or None,
            num_iterations=state.num_iterations,
            devices=[
                DeviceDrift(device=device, factor=own.scale, is_drifting=own.is_drifting)
                for device in registered.ranks
                for own in (state.of_device(device),)
            ],
            costs=list(map(cost_told, changes_of(state, registered))),
            slow=slow_told(state.slow, registered),
        )

    async def versions(self, job: str, *, after: int | None, limit: int) -> LearnedVersionList:
        """Return some versions, from the newest on.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``.
        """
        await self._spec(job)
        rows = await asyncio.to_thread(self._store.learning.versions, job, after=after, limit=limit)
        return LearnedVersionList(
            versions=[LearnedVersionSummary.model_validate(version_told(row).model_dump()) for row in rows],
            next_after=rows[-1].version if len(rows) == limit else None,
        )

    async def version(self, job: str, version: int) -> LearnedVersion:
        """Return one version.

        Raises
        ------
        PlanningFault
            Code ``unknown-job`` or ``not-found``.
        """
        await self._spec(job)
        row = await asyncio.to_thread(self._store.learning.version, job, version)
        if row is None:
            raise PlanningFault(
                FaultCode.NOT_FOUND,
                f"job {job} has no version {version} of what it learned",
                "ask for one that its list of versions has",
                job=job,
                version=version,
            )
        return version_told(row)

    async def reset(self, job: str) -> LearnedVersion:
        """Let what was registered hold again, and learn anew.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``, or ``invalid-request`` if the job does not learn.
        """
        spec = await self._spec(job)
        if spec.learning == "off":
            raise PlanningFault(
                FaultCode.INVALID_REQUEST,
                f"job {job} was registered with learning off and has nothing to forget",
                "leave it as it is",
                job=job,
            )
        profiles = await self._learner.profiles_of(spec)
        try:
            made = await asyncio.to_thread(self._learner.reset, job, spec, profiles)
        except JobUnknown:
            raise unknown_job(job) from None
        return await self.version(job, made.version)

    async def _spec(self, job: str) -> JobSpec:
        row = await asyncio.to_thread(self._store.jobs.get, job)
        if row is None:
            raise unknown_job(job)
        return spec_of(row.spec)
