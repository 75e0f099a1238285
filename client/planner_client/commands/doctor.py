"""`hydraulis doctor`: whether this machine is fit for work, and the service that it is to talk to."""

from typing import TYPE_CHECKING, Annotated

import typer

from planner_client.commands.options import JsonOption
from planner_client.commands.service import (
    DEFAULT_URL,
    FAILED,
    CaFileOption,
    Ending,
    TokenOption,
    UrlOption,
    ended_by,
)

if TYPE_CHECKING:
    from planner_client.doctor.finding import Finding

_COLOURS = {"ok": "green", "note": "", "warning": "yellow", "failed": "red"}
LONGEST_WAIT_S = 600.0

OfflineOption = Annotated[bool, typer.Option("--offline", help="Look at this machine alone, at no service.")]
WaitOption = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.001, max=LONGEST_WAIT_S, help="Longest wait for each answer (s).", metavar="SECONDS"
    ),
]


def doctor(  # noqa: PLR0913 - where the service is, who asks, and how to tell
    *,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    ca_file: CaFileOption = None,
    timeout: WaitOption = 5.0,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Look at environment, devices, service, clock and versions, and say what to do; exits 1 if something failed."""
    from planner_client.doctor.environment import (  # noqa: PLC0415 - fast `--help`
        PARTS,
        look_at_packages,
        look_at_python,
        look_with_other_parts,
    )
    from planner_client.doctor.finding import is_fit  # noqa: PLC0415
    from planner_client.doctor.service import look_at_service  # noqa: PLC0415

    with ended_by("doctor"):
        findings = [look_at_python(), *map(look_at_packages, PARTS), *look_with_other_parts()]
        if not offline:
            findings.extend(look_at_service(url, token or None, ca_file, timeout))
        _print(findings, as_json=as_json)
        if not is_fit(findings):
            num_failed = sum(finding.verdict == "failed" for finding in findings)
            raise Ending(f"{num_failed} of {len(findings)} things looked at failed", FAILED)


def _print(findings: "list[Finding]", *, as_json: bool) -> None:
    from dataclasses import asdict  # noqa: PLC0415 - fast `--help`

    from planner_client.commands.shown import coloured, print_json, print_table  # noqa: PLC0415

    if as_json:
        print_json([asdict(finding) for finding in findings])
        return
    print_table(
        ("subject", "verdict", "seen", "what to do"),
        (
            (finding.subject, coloured(finding.verdict, _COLOURS[finding.verdict]), finding.observation, finding.remedy)
            for finding in findings
        ),
    )
