"""OpenTelemetry spans for requests and loads, behind the extra `pip install .[otel]`.

A request's span has children for the wait and for the replica's answer; the latter is what the replica sees as its parent
(W3C `traceparent`). A load's span is made when the load is over. Nothing here runs when no endpoint is set.
"""

import re
import time
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import __version__
from gateway.core.events import Event

_FIELD = re.compile(rb"(?:^|\n)(traceparent|tracestate): ?([^\r\n]*)")
_PROPAGATOR = TraceContextTextMapPropagator()
_LOADS = {"load": None, "load_failed": StatusCode.ERROR}


class RequestTrace:
    """One request, from its first byte to its last."""

    __slots__ = ("_request", "_tracer", "_upstream", "_wait")

    def __init__(self, tracer: trace.Tracer, endpoint: str, lines: bytes) -> None:
        carrier = {name.decode(): value.decode("ascii", "replace") for name, value in _FIELD.findall(lines)}
        parent = _PROPAGATOR.extract(carrier)
        self._tracer = tracer
        self._request = tracer.start_span(endpoint, parent, SpanKind.SERVER)
        self._wait: Span | None = tracer.start_span("wait for a replica", trace.set_span_in_context(self._request))
        self._upstream: Span | None = None

    def sent(self, replica: str, model: str, revision: str | None) -> Mapping[str, str]:
        """The wait is over; returns the fields that tell the replica its parent."""
        self._end_upstream(None)
        if self._wait is not None:
            self._wait.end()
            self._wait = None
        inside = trace.set_span_in_context(self._request)
        self._upstream = self._tracer.start_span("replica", inside, SpanKind.CLIENT)
        facts = {"lora_gateway.replica": replica, "lora_gateway.model": model, "lora_gateway.revision": revision or ""}
        self._upstream.set_attributes(facts)
        self._request.set_attributes(facts)
        fields: dict[str, str] = {}
        _PROPAGATOR.inject(fields, trace.set_span_in_context(self._upstream))
        return fields

    def first_byte(self) -> None:
        if self._upstream is not None:
            self._upstream.add_event("first byte")

    def ended(self, status: int) -> None:
        if self._wait is not None:
            self._wait.end()
        self._end_upstream(status)
        self._request.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._request.set_status(Status(StatusCode.ERROR))
        self._request.end()

    def _end_upstream(self, status: int | None) -> None:
        span, self._upstream = self._upstream, None
        if span is None:
            return
        if status is None or status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()


class Tracing:
    """`endpoint` is the URL of an OTLP/HTTP collector, such as `http://collector:4318`."""

    def __init__(self, endpoint: str, *, exporter: SpanExporter | None = None) -> None:
        resource = Resource.create({"service.name": "lora-gateway", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        sink = exporter or OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(sink))
        self._tracer = self._provider.get_tracer("lora-gateway", __version__)

    def request(self, endpoint: str, lines: bytes) -> RequestTrace:
        return RequestTrace(self._tracer, endpoint, lines)

    def event(self, event: Event) -> None:
        """A load that is over becomes a span of its own."""
        if event.kind not in _LOADS or event.seconds is None:
            return
        end = time.time_ns()
        span = self._tracer.start_span("load", kind=SpanKind.CLIENT, start_time=end - int(event.seconds * 1e9))
        span.set_attributes(
            {
                "lora_gateway.replica": event.replica or "",
                "lora_gateway.model": event.adapter or "",
                "lora_gateway.revision": event.revision or "",
            }
        )
        if event.kind == "load_failed":
            span.set_status(Status(StatusCode.ERROR, event.reason))
        span.end(end)

    def close(self) -> None:
        """What is not exported yet goes out; waits a few seconds at most."""
        self._provider.shutdown()
