"""An OpenTelemetry collector, as far as a sender of traces sees one: OTLP over HTTP, on a real socket."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

__all__ = ["Collector", "Told", "collector"]


@dataclass(frozen=True, kw_only=True)
class Told:
    """A span that came; ids in hexadecimal, ``""`` for none.

    Attributes:
        links: Trace id and span id of each.
        service: The name of the service.
    """

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, object]
    links: list[tuple[str, str]]
    is_error: bool
    message: str
    service: str


@dataclass
class Collector:
    """What has come, and how what comes is answered.

    Attributes:
        url: Where it listens, without a path.
        status: Of every answer.
        holds: Set: answers are given at once.
        posts: Path of each request.
        bodies: What came with each, as it was before it was packed.
    """

    url: str = ""
    status: int = 200
    holds: threading.Event = field(default_factory=threading.Event)
    posts: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    spans: list[Told] = field(default_factory=list)

    def trace(self, trace: str) -> list[Told]:
        """The spans of a trace, in the order of their beginning."""
        return sorted((span for span in self.spans if span.trace == trace), key=lambda span: span.began_ns)

    def named(self, name: str) -> list[Told]:
        """The spans of that name."""
        return [span for span in self.spans if span.name == name]


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector that takes everything."""
    made = Collector()
    made.holds.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = zlib.decompress(body, wbits=31)
            made.posts.append(self.path)
            made.bodies.append(body)
            made.holds.wait(60)
            if made.status == 200:
                made.spans += _read(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            with suppress(ConnectionError):  # whoever was kept waiting has gone
                self.send_response(made.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.holds.set()
            server.shutdown()
            thread.join()


def _read(body: bytes) -> Iterator[Told]:
    request = ExportTraceServiceRequest.FromString(body)
    for resource in request.resource_spans:
        service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _told(span, service)


def _told(span: Span, service: str) -> Told:
    return Told(
        name=span.name,
        kind=span.kind,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        attributes={each.key: _value(each.value) for each in span.attributes},
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        message=span.status.message,
        service=service,
    )


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)
