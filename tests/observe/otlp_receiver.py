"""A receiver of traces: OTLP over HTTP on a free port, keeping what it was sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class ReceivedSpan:
    """One span, with ids in hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    facts: dict[str, Any]
    is_error: bool
    num_events: int
    start_ns: int
    end_ns: int


@dataclass
class OtlpReceiver:
    """What was received so far."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def spans(self) -> list[ReceivedSpan]:
        return [
            ReceivedSpan(
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                facts={pair.key: _value(pair.value) for pair in span.attributes},
                is_error=span.status.code == span.status.STATUS_CODE_ERROR,
                num_events=len(span.events),
                start_ns=span.start_time_unix_nano,
                end_ns=span.end_time_unix_nano,
            )
            for request in self._requests()
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [
            {pair.key: _value(pair.value) for pair in resource.resource.attributes}
            for request in self._requests()
            for resource in request.resource_spans
        ]

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        """Return the spans right below one, in the order they began."""
        found = [span for span in self.spans if span.parent_id == parent.span_id]
        return sorted(found, key=lambda span: span.start_ns)

    def _requests(self) -> Iterator[ExportTraceServiceRequest]:
        for body in list(self.bodies):
            yield ExportTraceServiceRequest.FromString(body)


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


@contextmanager
def receiving() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            receiver.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
