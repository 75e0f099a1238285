"""What the commands that ask a service have in common: where it is, who asks, and how they end."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, NoReturn

import typer

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130

DEFAULT_URL = "http://127.0.0.1:8000"
MAX_TIMEOUT_S = 86_400
SERVICE = "Service"

UrlOption = Annotated[
    str,
    typer.Option("--url", envvar="HYDRAULIS_URL", help="Where the planner is.", metavar="URL", rich_help_panel=SERVICE),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="HYDRAULIS_TOKEN",
        help="Token to show; the environment variable keeps it out of lists of processes.",
        metavar="TOKEN",
        rich_help_panel=SERVICE,
    ),
]
CaFileOption = Annotated[
    str | None,
    typer.Option(
        "--ca-file",
        envvar="HYDRAULIS_CA_FILE",
        help="Certificates (PEM) to trust instead of the public ones.",
        metavar="FILE",
        rich_help_panel=SERVICE,
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.001,
        max=MAX_TIMEOUT_S,
        help="Longest wait for each answer (s), all tries together.",
        metavar="SECONDS",
        rich_help_panel=SERVICE,
    ),
]

_SERVICE_OPTIONS = {
    "url": (UrlOption, DEFAULT_URL),
    "token": (TokenOption, None),
    "ca_file": (CaFileOption, None),
    "timeout": (TimeoutOption, 30.0),
}

_IN_OTHER_WORDS = (
    (re.compile(r"\btoken="), "--token"),
    (re.compile(r"\bca_file\b"), "--ca-file"),
    (re.compile(r"\bGET /v1/(jobs|plans|profiles|nodes)\b"), r"`hydraulis \1 list`"),
)
"""What the client and the service say to programs, as it is typed here."""

_GIVING_A_TOKEN = "give one with HYDRAULIS_TOKEN or --token"  # noqa: S105 - a sentence about tokens


class Ending(Exception):  # noqa: N818 - not every ending is an error
    """End the command with one sentence on standard error and this exit code."""

    def __init__(self, sentence: str, code: int = BAD_INPUT) -> None:
        super().__init__(sentence)
        self.code = code


def asks_service(command: str, *, needs: str = "read") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a service, and hand it the client that they make as its first argument.

    Whatever the service, the file system or the input have against it ends the command with one sentence.

    Parameters
    ----------
    command
        The command as it is typed, without ``hydraulis``.
    needs
        The scope of token that it needs.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def run(**options: Any) -> None:
            service = {name: options.pop(name) for name in _SERVICE_OPTIONS}
            _run(command, needs, function, service, options)

        signature = inspect.signature(function)
        own = list(signature.parameters.values())[1:]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in _SERVICE_OPTIONS.items()
        ]
        # typer reads a command's options from its signature and annotations.
        run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        return run

    return decorate


def _run(
    command: str, needs: str, function: Callable[..., None], service: dict[str, Any], options: dict[str, Any]
) -> None:
    from planner_client.client import PlannerClient  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_client.errors import DeadlineExceeded, HydraulisError, RequestRefused  # noqa: PLC0415

    url = service["url"]
    with ended_by(command):
        try:
            with PlannerClient(
                url, token=service["token"] or None, ca_file=service["ca_file"], timeout_s=service["timeout"]
            ) as client:
                function(client, **options)
        except RequestRefused as refused:
            raise Ending(_typed(_refusal(refused, needs, has_token=bool(service["token"])))) from refused
        except DeadlineExceeded as error:
            remedy = _remedy(error, "raise --timeout, or look there")
            sentence = f"the planner at {url} did not answer in time: {error}; {remedy}"
            raise Ending(sentence, FAILED) from error
        except HydraulisError as error:
            remedy = _remedy(error, "give another --url, or look there")
            sentence = f"the planner at {url} gave no answer to use: {error}; {remedy}"
            raise Ending(sentence, FAILED) from error


def _remedy(error: Exception, usual: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "give the certificates to trust with --ca-file or HYDRAULIS_CA_FILE, or another --url"
    return usual


@contextmanager
def ended_by(command: str) -> Iterator[None]:
    """End a command with one sentence where it cannot go on, for whatever reason its user can act on.

    Parameters
    ----------
    command
        The command as it is typed, without ``hydraulis``.
    """
    try:
        # What a terminal's encoding lacks is spelled out rather than a reason to fail.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        yield
        sys.stdout.flush()  # a disk that is full is found here, where it can be said
    except KeyboardInterrupt:
        _end(command, "stopped", INTERRUPTED)
    except Ending as ending:
        _end(command, str(ending), ending.code)
    except BrokenPipeError:
        raise  # whoever reads our output has seen enough; typer ends the command
    except OSError as error:
        _drop_unwritten()
        _end(command, str(error), BAD_INPUT)
    except ValueError as error:
        _end(command, _typed(str(error)), BAD_INPUT)


def _drop_unwritten() -> None:
    """Let standard output lead nowhere, so that what a full disk did not take does not fail once more at the end."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


def _typed(sentence: str) -> str:
    for spoken, typed in _IN_OTHER_WORDS:
        sentence = spoken.sub(typed, sentence)
    return sentence


def _refusal(refused: Any, needs: str, *, has_token: bool) -> str:
    problem = refused.problem
    if problem.status == 401 and not has_token:
        return f"{problem.detail}: a token with scope {needs}; {_GIVING_A_TOKEN} [{problem.code}]"
    if problem.status == 401:
        return f"{problem.detail}; this needs a token with scope {needs}; {_GIVING_A_TOKEN} [{problem.code}]"
    return str(refused)


def _end(command: str, sentence: str, code: int) -> NoReturn:
    from planner_client.commands.shown import plain  # noqa: PLC0415 - keeps `hydraulis --help` fast

    sys.stderr.write(f"hydraulis {command}: {plain(' '.join(sentence.split()))}\n")
    raise typer.Exit(code)
