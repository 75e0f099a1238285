"""How commands end that cannot go on: one sentence on standard error, in the words of the command line, and a code."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from pydantic import ValidationError

BROKEN = 1
"""What ran has shown that something is wrong: an invariant broken, a bar not met, a process that died."""

BAD_INPUT = 2
NO_PLAN_IN_TIME = 3
INTERRUPTED = 130

LONGEST_VALUE_SHOWN = 60

_OPTIONS = {
    "num_gpus": "--gpus",
    "devices": "--gpus",
    "lengths": "--lengths",
    "histograms": "--lengths",
    "strategies": "--strategy",
    "allowed_layouts": "--allow-layout",
    "idle_replicas": "--forbid-idle-replicas",
    **{
        name: "--" + name.replace("_", "-")
        for name in (
            "optimizer_layout",
            "alignment",
            "max_length",
            "over_long",
            "max_tokens_per_micro_batch",
            "cost",
            "equal_micro_batch_counts",
            "micro_batch_count_multiple",
            "at_least_stages",
            "homogeneous",
            "tp_inside_node",
            "max_process_groups",
            "deadline_ms",
            "target_gap",
            "seed",
            "method",
        )
    },
}
"""Options by the name that their value has on the wire."""

_IN_PROSE = re.compile(
    r"(?<!-)\b(?:options\.)?("
    + "|".join(sorted((name for name in _OPTIONS if "_" in name), key=len, reverse=True))
    + r")\b"
)
"""Wire names that are no words of English, so that a sentence can only mean the option."""

_LISTED = re.compile(r"(?<=does not honour )\w+(?:, \w+)*")
"""Where a sentence lists options, all words are names."""


def fail(command: str, sentence: str, code: int) -> NoReturn:
    """End a command with one line on standard error.

    Parameters
    ----------
    command
        The command as it was typed, without ``hydraulis``.
    sentence
        What is wrong and what to change.
    code
        Exit code.

    Raises
    ------
    typer.Exit
        Always.
    """
    sys.stderr.write(f"hydraulis {command}: {' '.join(sentence.split())}\n")
    raise typer.Exit(code)


@contextmanager
def failures_of(command: str) -> Iterator[None]:
    """End the command where what stands below fails for a reason that its user can act on.

    Bad input and faults of the request end with `BAD_INPUT`, a deadline that has passed with `NO_PLAN_IN_TIME`, Ctrl-C
    with `INTERRUPTED`. Anything else is a defect and is raised on.

    Parameters
    ----------
    command
        The command as it was typed, without ``hydraulis``.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - keeps `hydraulis --help` fast

    from planner_service.core.faults import PlanningFault  # noqa: PLC0415

    try:
        with stopped_by_hand(command):
            yield
    except PlanningFault as fault:
        is_late = fault.code == "deadline-exceeded"
        fail(command, in_options(f"{fault.detail}; {fault.remedy}"), NO_PLAN_IN_TIME if is_late else BAD_INPUT)
    except ValidationError as error:
        fail(command, first_error(error, names_options=True), BAD_INPUT)
    except ValueError as error:
        fail(command, str(error), BAD_INPUT)


@contextmanager
def stopped_by_hand(command: str) -> Iterator[None]:
    """End the command with `INTERRUPTED` on Ctrl-C, and in no other way: what else goes wrong is raised on."""
    try:
        yield
    except KeyboardInterrupt:
        fail(command, "stopped", INTERRUPTED)


def in_options(text: str) -> str:
    """Write the wire names in a sentence as the options they are on the command line."""
    listed = _LISTED.sub(lambda match: re.sub(r"\w+", lambda word: _OPTIONS.get(word[0], word[0]), match[0]), text)
    return _IN_PROSE.sub(lambda match: _OPTIONS[match[1]], listed)


def first_error(error: "ValidationError", *, names_options: bool = False) -> str:
    """Say in one sentence what is wrong first, where, and how much more there is.

    Parameters
    ----------
    error
        What pydantic found.
    names_options
        Name options in place of the wire's fields; for values that were given as options, not in a file.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    where = ".".join(str(part) for part in first["loc"])
    if names_options:
        message, where = in_options(message), _option_at(first["loc"])
    value = repr(first["input"])
    is_single = first["input"] is None or isinstance(first["input"], str | int | float)
    shown = f" (got {value})" if is_single and len(value) <= LONGEST_VALUE_SHOWN else ""
    more = f"; {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return (f"{where}: " if where else "") + message + shown + more


def _option_at(location: tuple[str | int, ...]) -> str:
    """Name the option that a value of a request came from, with the part of it: ``--allow-layout tp``."""
    steps = [step for step in location if isinstance(step, str) and step != "options"]
    if not steps:
        return ""
    if steps[0] == "devices":
        return _OPTIONS["num_gpus"]
    return " ".join([_OPTIONS.get(steps[0], steps[0]), *steps[1:]])
