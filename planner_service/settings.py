"""What an operator can set: by environment variable ``HYDRAULIS_<NAME>`` or by an option of `hydraulis serve`."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

MEBIBYTE_BYTES = 1024**2
GIBIBYTE_BYTES = 1024**3


def _num_cpus() -> int:
    return max(1, len(os.sched_getaffinity(0)))


class Settings(BaseSettings):
    """Settings of one planner server.

    Attributes
    ----------
    database
        SQLAlchemy URL, or the path of a SQLite file that is created where it is missing.
    auth
        Whether callers are asked for tokens: ``auto`` asks unless the server listens on loopback addresses alone,
        ``tokens`` always, ``off`` never.
    allow_anonymous
        Lets a server that others can reach start with ``auth`` off.
    tls_cert, tls_key
        Files (PEM) with the certificate chain and its key; the server speaks HTTPS if they are given.
    workers
        Solver processes; by default one for each CPU this process may use.
    max_waiting
        Requests that may wait for a solver; one more is answered 429.
    max_wait_ms
        Longest wait for a solver; after that the request is answered 429.
    grace_ms
        Time a solver gets to stop after its deadline or a cancelled request, before it is killed and replaced.
    start_timeout_s
        Time a solver process may take to import the planner.
    max_solver_bytes
        Memory that one solver process may allocate; a request that needs more is refused.
    max_open_iterations
        Most unfinished iterations of one job; one more is answered 429.
    max_reports_waiting, max_report_wait_ms
        Reports of jobs that may wait to be taken in, and for how long; beyond that they are answered 429.
    max_long_polls
        Most callers that may wait for plans of jobs; one more is answered 429.
    lease_s
        How long an iteration is left to a service that gives no sign of life before another takes it up.
    keep_iterations_days, keep_plans_days, keep_audit_days
        How long finished iterations of jobs, plans that no kept iteration has, and entries of the audit record are
        kept.
    keep_nodes_days
        How long nodes are kept whose agents are not heard of any more.
    max_body_bytes
        Largest request body.
    body_timeout_s
        Time that the head of a request, and then its body, may take to arrive, and that an answer may wait to be taken.
    drain_timeout_s
        Time that requests in progress get to finish when the server is told to stop.
    """

    model_config = SettingsConfigDict(env_prefix="HYDRAULIS_", extra="ignore", frozen=True)

    database: Annotated[str, Field(min_length=1)] = "hydraulis.sqlite3"
    auth: Literal["auto", "tokens", "off"] = "auto"
    allow_anonymous: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    workers: Annotated[int, Field(ge=1, le=1024)] = Field(default_factory=_num_cpus)
    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = 64
    max_wait_ms: Annotated[int, Field(ge=1, le=3_600_000)] = 10_000
    grace_ms: Annotated[int, Field(ge=0, le=60_000)] = 500
    start_timeout_s: Annotated[float, Field(gt=0, le=600)] = 60.0
    max_solver_bytes: Annotated[int, Field(ge=GIBIBYTE_BYTES // 4)] = 4 * GIBIBYTE_BYTES
    max_open_iterations: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    max_reports_waiting: Annotated[int, Field(ge=0, le=1_000_000)] = 1024
    max_report_wait_ms: Annotated[int, Field(ge=1, le=3_600_000)] = 1000
    max_long_polls: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    lease_s: Annotated[float, Field(ge=0.5, le=600)] = 5.0
    keep_iterations_days: Annotated[float, Field(gt=0, le=36_500)] = 30.0
    keep_plans_days: Annotated[float, Field(gt=0, le=36_500)] = 30.0
    keep_audit_days: Annotated[float, Field(gt=0, le=36_500)] = 400.0
    keep_nodes_days: Annotated[float, Field(gt=0, le=36_500)] = 7.0
    max_body_bytes: Annotated[int, Field(ge=1024)] = 64 * MEBIBYTE_BYTES
    body_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    drain_timeout_s: Annotated[int, Field(ge=0, le=3600)] = 30

    def asks_for_tokens(self, *, is_local: bool) -> bool:
        """Tell whether callers need tokens, given whether only this machine can reach the server."""
        return self.auth == "tokens" or (self.auth == "auto" and not is_local)
