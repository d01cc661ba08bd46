"""An OpenTelemetry collector that decodes and counts: ``python -m benchmarks.collector`` prints its address and serves.

``POST /v1/traces`` takes OTLP's protobuf; ``GET /`` answers the number of traces whose first span has come.
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Collector(BaseHTTPRequestHandler):
    """Keeps the spans of all requests, each with the attributes of its resource."""

    spans: list[tuple[dict[str, Any], Any]]

    def do_POST(self) -> None:
        """Take a request of an exporter."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = attributes(part.resource.attributes)
            self.spans += [(resource, span) for scope in part.scope_spans for span in scope.spans]
        self._answer(b"")

    def do_GET(self) -> None:
        """Say how many traces came."""
        self._answer(str(sum(not span.parent_span_id for _, span in self.spans)).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def attributes(found: Any) -> dict[str, Any]:
    """Attributes of OTLP by name; lists are of texts."""
    values = ((each.key, each.value, each.value.WhichOneof("value")) for each in found)
    return {
        key: [item.string_value for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
        for key, value, kind in values
    }


def server(port: int = 0) -> tuple[ThreadingHTTPServer, list[tuple[dict[str, Any], Any]]]:
    """A collector on the loopback address, and the spans it will have got. The caller serves and closes it."""
    spans: list[tuple[dict[str, Any], Any]] = []
    return ThreadingHTTPServer(("127.0.0.1", port), type("Collecting", (Collector,), {"spans": spans})), spans


if __name__ == "__main__":
    serving, _ = server()
    print(f"http://127.0.0.1:{serving.server_port}", flush=True)
    serving.serve_forever()
