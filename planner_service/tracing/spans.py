"""Spans: parts of what is being traced. Without a tracer, and outside a sampled trace, they cost a look and no more."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import StatusCode

PREFIX = "hydraulis."
"""Of the names of what spans tell."""

_NOTHING: AbstractContextManager[None] = nullcontext()

_tracer: trace.Tracer | None = None


def use_tracer(tracer: trace.Tracer | None) -> None:
    """Take spans to a tracer from now on, in the whole process, as logs are; None takes them nowhere."""
    global _tracer  # noqa: PLW0603 - one a process, as for logs
    _tracer = tracer


def span(name: str, **facts: str | float) -> AbstractContextManager[None]:
    """Trace what happens inside as a part of what is being traced, if anything is.

    Parameters
    ----------
    name
        What happens; one of a few, with no names of jobs in it.
    facts
        What is known of it beforehand; `note` adds what is known later.
    """
    if _tracer is None or not trace.get_current_span().get_span_context().trace_flags.sampled:
        return _NOTHING
    return _spanned(_tracer, name, None, facts)


def begin(name: str, **facts: str | float) -> AbstractContextManager[None]:
    """Trace what happens inside as a trace of its own; otherwise as `span`."""
    return _NOTHING if _tracer is None else _spanned(_tracer, name, Context(), facts)


def note(**facts: str | float | None) -> None:
    """Tell something of what is being traced right now; what is None is left out."""
    # A request's span ends with its answer, and some of what is known of it comes a moment later.
    if _tracer is not None and (current := trace.get_current_span()).is_recording():
        current.set_attributes(_named({name: it for name, it in facts.items() if it is not None}))


def trace_ids() -> dict[str, str]:
    """Return what a line of the log says of the trace it belongs to; nothing without one."""
    if _tracer is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}


@contextmanager
def _spanned(tracer: trace.Tracer, name: str, context: Context | None, facts: dict[str, str | float]) -> Iterator[None]:
    # Messages of errors hold what callers sent; the log has them, a trace has the kind of error alone.
    with tracer.start_as_current_span(
        name, context=context, attributes=_named(facts), record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield
        except asyncio.CancelledError:
            current.set_attribute(PREFIX + "cancelled", value=True)
            raise
        except Exception as error:
            current.set_attribute("error.type", str(getattr(error, "code", type(error).__name__)))
            current.set_status(StatusCode.ERROR)
            raise


def _named(facts: dict[str, str | float]) -> dict[str, str | float]:
    return {PREFIX + name: it for name, it in facts.items()}
