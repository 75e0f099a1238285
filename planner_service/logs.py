"""Logs: one JSON object a line on stderr, the web server's own among them."""

import json
import logging
import sys

import structlog
from structlog.typing import EventDict, WrappedLogger

from planner_service.access import without_secrets
from planner_service.tracing import trace_ids


def configure_logs(level: int = logging.INFO) -> None:
    """Send structlog's and the standard library's records to stderr as JSON lines."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _with_trace,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _as_json_line],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _with_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event.update(trace_ids())
    return event


def _as_json_line(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    # ASCII, because a path may hold characters that readers of logs take for the end of a line.
    return without_secrets(json.dumps(event, default=repr, ensure_ascii=True))
