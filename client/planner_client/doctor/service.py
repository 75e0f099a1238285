"""The service from here: whether it is reached, ready, of this version, with the same clock, and knows the token."""

import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from planner_client.address import bearer, checked_address, trusting
from planner_client.doctor.environment import DISTRIBUTION, version_of
from planner_client.doctor.finding import Finding
from planner_client.transport import DeadlineTransport, deadline

MOST_SKEW_S = 5.0
"""Tokens expire and lists show ages by clocks; what plans and training rest on is measured by one clock alone."""

SLOW_ANSWER_MS = 250.0
"""An answer that takes longer is a burden for iterations of a second."""


def look_at_service(url: str, token: str | None, ca_file: Path | str | None, timeout_s: float) -> Iterator[Finding]:
    """Look at a service by asking it.

    Parameters
    ----------
    url
        Where it is.
    token
        What is shown to it.
    ca_file
        Certificates (PEM) to trust instead of the public ones.
    timeout_s
        Longest wait for each answer.

    Raises
    ------
    ValueError
        If the address, the token or the file cannot be used.
    """
    address = checked_address(url)
    transport = DeadlineTransport(trusting(address, ca_file))
    with httpx.Client(base_url=address, headers=bearer(token), transport=transport) as client:

        def get(path: str) -> httpx.Response:
            with deadline(time.monotonic() + timeout_s):
                return client.get(path)

        began_at = time.monotonic()
        try:
            alive = get("/healthz")
        except httpx.HTTPError as unreachable:
            yield _unreachable(url, unreachable)
            return
        took_ms = 1000 * (time.monotonic() - began_at)
        yield from reached(url, alive.status_code, _document(alive), took_ms)
        yield clock(alive.headers, time.time())
        try:
            ready = get("/readyz")
            yield readiness(ready.status_code, _document(ready))
            listed = get("/v1/profiles?limit=1")
            yield access(listed.status_code, _document(listed), has_token=token is not None)
        except httpx.HTTPError as lost:
            yield _unreachable(url, lost)


def reached(url: str, status: int, document: Mapping[str, Any], took_ms: float) -> Iterator[Finding]:
    """Judge the answer to ``/healthz``, the version in it included."""
    if status != 200 or document.get("status") != "ok":
        yield Finding(
            "service", "failed", f"{url} answers, but not as a planner (status {status})", "give the planner's --url"
        )
        return
    if took_ms > SLOW_ANSWER_MS:
        yield Finding(
            "service",
            "warning",
            f"{url} took {took_ms:.0f} ms to say that it is there",
            "look for a busy host or a long way to it; a service near the trainers answers in a few ms",
        )
    else:
        yield Finding("service", "ok", f"{url} answers in {took_ms:.0f} ms")
    theirs, ours = document.get("version"), version_of(DISTRIBUTION)
    if not isinstance(theirs, str):
        yield Finding("version", "warning", "the service does not say its version", "bring it up to date")
    elif theirs.split(".")[:2] != (ours or "").split(".")[:2]:
        yield Finding(
            "version", "warning", f"the service is {theirs}, this is {ours}", "install the same version on both sides"
        )
    else:
        yield Finding("version", "ok", f"{theirs} there, {ours} here")


def clock(headers: Mapping[str, str], now: float) -> Finding:
    """Compare clocks by an answer's date, which has whole seconds (`now`: seconds since 1970)."""
    date = headers.get("date")
    if date is None:
        return Finding("clock", "note", "the service does not say what time it is")
    try:
        skew_s = now - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return Finding("clock", "note", f"the service says that it is {date[:60]!r}")
    if abs(skew_s) > MOST_SKEW_S:
        ahead = "ahead of" if skew_s > 0 else "behind"
        return Finding(
            "clock",
            "warning",
            f"this clock is {abs(skew_s):.0f} s {ahead} the service's",
            "synchronise both (chrony, systemd-timesyncd); tokens expire by the service's clock",
        )
    return Finding("clock", "ok", f"within {MOST_SKEW_S:.0f} s of the service's")


def readiness(status: int, document: Mapping[str, Any]) -> Finding:
    """Judge the answer to ``/readyz``."""
    if status == 200:
        return Finding("solvers", "ok", f"{document.get('num_solvers')} ready")
    detail = document.get("detail", f"status {status}")
    return Finding("solvers", "failed", str(detail), str(document.get("remedy") or "look into the service's log"))


def access(status: int, document: Mapping[str, Any], *, has_token: bool) -> Finding:
    """Judge whether the token opens the service."""
    shown = "with the token given" if has_token else "without a token"
    if status == 200:
        return Finding("access", "ok", f"open {shown}")
    detail = document.get("detail", f"status {status}")
    how = "give a valid token with HYDRAULIS_TOKEN" if status in {401, 403} else "look into the service's log"
    return Finding("access", "failed", f"{detail} ({shown})", str(document.get("remedy") or how))


def _unreachable(url: str, error: httpx.HTTPError) -> Finding:
    return Finding(
        "service",
        "failed",
        f"{url} is not reached: {type(error).__name__}: {error}",
        "start one (`hydraulis serve`), or give another --url or --ca-file; see whether a firewall or proxy is between",
    )


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
