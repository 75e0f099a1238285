"""Where spans go: to an OTLP receiver, as OpenTelemetry's own environment variables say."""

import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from planner_service.tracing.spans import use_tracer

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

SERVICE_NAME = "hydraulis-planner"

CLOSE_S = 3.0
"""Longest wait, when the service ends, for the receiver to take what is left."""

UNTRACED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked all the time by those who watch the service, and never for themselves."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")

# A name, "=", a value without a comma: https://opentelemetry.io/docs/specs/otel/protocol/exporter/
_HEADER = re.compile(r"[ \t]*[!#$%&'*+.0-9A-Z^_`a-z|~-]+[ \t]*=[ !#-+\--:<-\[\]-~\t]*")

_OFF: "TelemetryConfig" = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""The web framework traces requests by itself when it finds a tracer; here it does so only if asked."""


class TracingUnusable(Exception):  # noqa: N818 - names the state of what was asked for
    """Traces are asked for and cannot be sent; the message says why, and what to do. It holds no header's value."""


class Tracing:
    """Spans on their way to a receiver, until `close`.

    Parameters
    ----------
    provider
        OpenTelemetry's own.
    """

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        use_tracer(provider.get_tracer(SERVICE_NAME))

    def of_requests(self) -> "TelemetryConfig":
        """Return how the web framework traces requests; it reads ``traceparent`` of those who send one."""
        return {
            **_OFF,
            "tracer_provider": self._provider,
            "tracing": True,
            "operation_spans": False,
            "exclude": lambda scope: scope.get("path") in UNTRACED_PATHS,
        }

    def close(self, within_s: float = CLOSE_S) -> None:
        """Send what is left, if that takes no longer than ``within_s``, and trace no more."""
        use_tracer(None)
        sending = threading.Thread(target=self._provider.shutdown, name="hydraulis-last-spans", daemon=True)
        sending.start()
        sending.join(within_s)


def requests_traced(tracing: Tracing | None) -> "TelemetryConfig":
    """Return what the web framework is told of tracing."""
    return _OFF if tracing is None else tracing.of_requests()


def tracing_from(environ: Mapping[str, str], *, version: str, cleaned: Callable[[str], str] = str) -> Tracing | None:
    """Begin to trace if the environment asks for it.

    It does with an endpoint in ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, or with
    ``OTEL_TRACES_EXPORTER=otlp``; not with ``OTEL_SDK_DISABLED=true`` or ``OTEL_TRACES_EXPORTER=none``. The other
    ``OTEL_`` variables mean what OpenTelemetry says.

    Parameters
    ----------
    environ
        The process's environment; OpenTelemetry reads the rest from there.
    version
        Of the planner.
    cleaned
        Takes secrets out of a text that a caller wrote.

    Raises
    ------
    TracingUnusable
        If what it asks for cannot be done.
    """
    if not _is_asked_for(environ):
        return None
    _refuse_unusable(environ)
    try:
        # Who does not trace neither needs these packages nor waits for them.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        from planner_service.tracing.cleaning import Cleaning  # noqa: PLC0415
    except ImportError as error:
        raise TracingUnusable(
            f"OTEL_ variables ask for traces and {error.name} is not installed; "
            'pip install "hydraulis-planner[tracing]", or set OTEL_SDK_DISABLED=true'
        ) from error
    provider = TracerProvider(resource=_resource(environ, version), shutdown_on_exit=False)
    try:
        sending = BatchSpanProcessor(OTLPSpanExporter())
    except (ValueError, OSError) as error:
        raise TracingUnusable(f"traces cannot be sent: {error}; correct the OTEL_ variable") from error
    provider.add_span_processor(Cleaning(cleaned))
    provider.add_span_processor(sending)
    return Tracing(provider)


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    """Return the first variable that is set, and its value; empty texts if none is."""
    return next(((name, environ[name].strip()) for name in names if environ.get(name, "").strip()), ("", ""))


def _is_asked_for(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter not in ("", "otlp", "none"):
        raise TracingUnusable(
            f"OTEL_TRACES_EXPORTER is {exporter!r:.40}, but traces go by otlp alone; say otlp or none"
        )
    return exporter == "otlp" or (exporter == "" and _first(environ, _ENDPOINTS)[0] != "")


def _refuse_unusable(environ: Mapping[str, str]) -> None:
    """Refuse what the exporter would only grumble about, once a batch or showing a header's value."""
    name, protocol = _first(environ, _PROTOCOLS)
    if protocol not in ("", "http/protobuf"):
        raise TracingUnusable(f"{name} is {protocol!r:.40}, but traces are sent by http/protobuf alone; say that")
    name, endpoint = _first(environ, _ENDPOINTS)
    if name:
        try:
            is_url = urlsplit(endpoint).scheme in ("http", "https") and bool(urlsplit(endpoint).hostname)
        except ValueError:
            is_url = False
        if not is_url:
            raise TracingUnusable(f"{name} is no http or https URL; give one such as http://localhost:4318")
    for name in _HEADERS:
        for number, pair in enumerate(filter(None, environ.get(name, "").split(",")), start=1):
            if _HEADER.fullmatch(pair) is None:
                raise TracingUnusable(
                    f"{name} cannot be read: entry {number} is no name=value; encode what is special in values, "
                    "such as a comma as %2C"
                )


def _resource(environ: Mapping[str, str], version: str) -> "Resource":
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - see tracing_from

    named = environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    told = {"service.version": version, "service.instance.id": f"{socket.gethostname()}-{os.getpid()}"}
    if not environ.get("OTEL_SERVICE_NAME"):
        told["service.name"] = SERVICE_NAME
    return Resource.create({name: it for name, it in told.items() if f"{name}=" not in named})
