"""Keeps secrets out of spans, wherever callers put theirs."""

from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor

from planner_service.tracing.spans import PREFIX

WRITTEN_BY_CALLERS = ("url.path", "url.query", "server.address", PREFIX + "job")
"""What spans hold as it came in a request."""


class Cleaning(SpanProcessor):
    """Takes secrets out of what callers wrote, when a span begins.

    Parameters
    ----------
    cleaned
        Takes secrets out of a text.
    """

    def __init__(self, cleaned: Callable[[str], str]) -> None:
        self._cleaned = cleaned

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - as its base class
        """Clean a span."""
        told = span.attributes or {}
        for name in WRITTEN_BY_CALLERS:
            if name in told:
                span.set_attribute(name, self._cleaned(str(told[name])))
