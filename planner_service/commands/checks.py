"""What `hydraulis doctor` looks at where the service is installed."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner_service.settings import Settings

Told = tuple[str, str, str, str]
"""Subject, verdict, observation, remedy; see `planner_client.doctor.finding`."""

DEADLINE_MS = 10_000
SLOW_PLAN_MS = 2_000.0
"""The small plan that is tried here takes some tens of milliseconds."""


def look_at_solver() -> Iterator[Told]:
    """Plan something small with a profile that is built in, as a service would."""
    from planner_client.contract import PlanOptions, PlanRequest  # noqa: PLC0415 - found by `hydraulis doctor` alone
    from planner_service.profiles import builtin_profiles  # noqa: PLC0415
    from planner_service.translate import plan_request  # noqa: PLC0415

    name, profile = min(builtin_profiles().items())
    lengths = [4096, 2048, 1024, 512, 256, 128]
    request = PlanRequest(profile=profile, num_gpus=8, lengths=lengths, options=PlanOptions(deadline_ms=DEADLINE_MS))
    began_at = time.monotonic()

    def passed_ms() -> float:
        return 1000 * (time.monotonic() - began_at)

    made = plan_request(request, [profile], remaining_ms=lambda: DEADLINE_MS - passed_ms())
    seen = f"planned {made.num_sequences} sequences on 8 GPUs ({name}) in {passed_ms():.0f} ms"
    if passed_ms() > SLOW_PLAN_MS:
        yield "solver", "warning", seen, "see what else runs here: plans will be late on so slow or busy a machine"
    else:
        yield "solver", "ok", seen, ""


def look_at_database() -> Iterator[Told]:
    """Read the database that `hydraulis serve` would use here; changes nothing in it."""
    from pydantic import ValidationError  # noqa: PLC0415 - found by `hydraulis doctor` alone

    from planner_service.settings import Settings  # noqa: PLC0415

    try:
        settings = Settings()
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_context=False)[0]
        variable = "HYDRAULIS_" + "_".join(str(part) for part in first["loc"]).upper()
        yield "settings", "failed", f"{variable}: {first['msg']}", "correct it; docs/operations.md lists what there is"
    else:
        yield _database_of(settings)


def _database_of(settings: "Settings") -> Told:
    from planner_service.store import (  # noqa: PLC0415 - found by `hydraulis doctor` alone
        StoreLimits,
        StoreUnavailable,
        database_url,
        look_into,
    )

    try:
        shown = database_url(settings.database).render_as_string(hide_password=True)
        revision, newest = look_into(settings.database, StoreLimits(wait_s=2.0, statement_s=2.0, answer_s=3.0))
    except StoreUnavailable as unusable:
        return "database", "failed", str(unusable), "docs/storage.md says what each message asks for"
    if revision is None:
        return "database", "note", f"{shown} is empty or not there; `hydraulis serve` makes it", ""
    if revision != newest:
        return "database", "note", f"{shown} has revision {revision}; `hydraulis serve` brings it to {newest}", ""
    return "database", "ok", f"{shown} can be read, revision {revision}", ""
