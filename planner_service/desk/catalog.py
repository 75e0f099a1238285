"""The profiles a request can name: the built-in ones, and those registered in the store."""

import asyncio
from collections.abc import Mapping

from planner_client.contract import DevicePool, FaultCode, Profile, ProfileList, ProfileMeasurement, ProfileSummary
from planner_service.core.faults import PlanningFault
from planner_service.desk.canonical import canonical_json, content_digest
from planner_service.store import ProfileConflict, ProfileInUse, ProfileRow, Store
from planner_service.translate import fit_profile, refuse_unusable


class Catalog:
    """Profiles by name.

    Parameters
    ----------
    store
        Where registered profiles are kept.
    builtin
        Profiles that come with the planner; their names are reserved.
    """

    def __init__(self, store: Store, builtin: Mapping[str, Profile]) -> None:
        self._store = store
        self._builtin = dict(builtin)

    async def find(self, name: str) -> Profile:
        """Return the profile of that name.

        Raises
        ------
        PlanningFault
            Code ``unknown-profile``.
        """
        builtin = self._builtin.get(name)
        if builtin is not None:
            return builtin
        row = await asyncio.to_thread(self._store.profiles.get, name)
        if row is None:
            raise self._unknown(name)
        return Profile.model_validate_json(row.content)

    async def profile_of(self, pool: DevicePool) -> Profile:
        """Return the profile of some GPUs, by name or as it was sent.

        Raises
        ------
        PlanningFault
            Code ``unknown-profile``, or whatever makes a profile that was sent unusable.
        """
        if isinstance(pool.profile, Profile):
            await asyncio.to_thread(refuse_unusable, pool.profile)
            return pool.profile
        return await self.find(pool.profile)

    async def list(self) -> ProfileList:
        """Summarise all profiles, ascending by name."""
        rows = await asyncio.to_thread(self._store.profiles.all)
        stored = [Profile.model_validate_json(row.content) for row in rows if row.name not in self._builtin]
        entries = [_summary(profile, is_builtin=True) for profile in self._builtin.values()]
        entries += [_summary(profile, is_builtin=False) for profile in stored]
        return ProfileList(profiles=sorted(entries, key=lambda entry: entry.name))

    def register(self, sent: Profile | ProfileMeasurement) -> tuple[Profile, bool]:
        """Fit what needs fitting, refuse what cannot be used, and store the rest. Blocks.

        Returns
        -------
        tuple of Profile and bool
            The profile that stands under the name, and whether it is new.

        Raises
        ------
        PlanningFault
            Code ``profile-conflict`` if another profile has the name, or whatever makes the profile unusable.
        """
        submission = content_digest(canonical_json(sent))
        profile = fit_profile(sent) if isinstance(sent, ProfileMeasurement) else sent
        refuse_unusable(profile)
        content = canonical_json(profile)
        builtin = self._builtin.get(profile.name)
        if builtin is not None:
            if canonical_json(builtin) != content:
                raise _conflict(profile.name, "comes with the planner and differs")
            return builtin, False
        try:
            is_new = self._store.profiles.put(ProfileRow(profile.name, content, submission))
        except ProfileConflict:
            raise _conflict(profile.name, "is registered already and differs") from None
        if is_new:
            return profile, True
        stored = self._store.profiles.get(profile.name)
        return (profile if stored is None else Profile.model_validate_json(stored.content)), False

    def delete(self, name: str) -> None:
        """Delete a registered profile. Blocks.

        Raises
        ------
        PlanningFault
            Code ``unknown-profile``, or ``profile-in-use`` if a job names it or it comes with the planner.
        """
        if name in self._builtin:
            raise _in_use(name, "comes with the planner")
        try:
            was_there = self._store.profiles.delete(name)
        except ProfileInUse as use:
            raise _in_use(name, f"is that of job {use}") from None
        if not was_there:
            raise self._unknown(name)

    def _unknown(self, name: str) -> PlanningFault:
        return PlanningFault(
            FaultCode.UNKNOWN_PROFILE,
            f"there is no profile {name[:128]!r}",
            "register it with POST /v1/profiles, send it inline, or name one that GET /v1/profiles lists",
            profile=name[:128],
            builtin=sorted(self._builtin),
        )


def parse_submission(value: object) -> Profile | ProfileMeasurement:
    """Read a JSON value as a profile, or a measurement if any of its layouts has ``samples``.

    Raises
    ------
    ValidationError
        If it is neither; the errors are those of the kind that was meant.
    """
    return (ProfileMeasurement if _has_samples(value) else Profile).model_validate(value)


def _has_samples(value: object) -> bool:
    layouts = value.get("layouts") if isinstance(value, dict) else None
    return isinstance(layouts, list) and any(isinstance(layout, dict) and "samples" in layout for layout in layouts)


def _summary(profile: Profile, *, is_builtin: bool) -> ProfileSummary:
    return ProfileSummary(
        name=profile.name,
        source=profile.source,
        model=profile.model.name,
        device=profile.device.name,
        num_layouts=len(profile.layouts),
        is_builtin=is_builtin,
    )


def _in_use(name: str, why: str) -> PlanningFault:
    return PlanningFault(
        FaultCode.PROFILE_IN_USE,
        f"profile {name!r} {why}",
        "delete the jobs that use it first",
        profile=name,
    )


def _conflict(name: str, why: str) -> PlanningFault:
    return PlanningFault(
        FaultCode.PROFILE_CONFLICT,
        f"profile {name!r} {why}; plans made with it must stay what they are",
        "register yours under another name",
        profile=name,
    )
