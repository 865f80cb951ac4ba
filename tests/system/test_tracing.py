"""Spans as a collector gets them, over its own protocol."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.settings_sources import SettingsError, read
from tests.adapters import write_adapter
from tests.system.fleet import replicas, running


class Collector:
    """An OTLP/HTTP collector that keeps every span."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                assert head.startswith(b"post /v1/traces ")
                if b"content-encoding: gzip" not in head:
                    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                        for scope in resource.scope_spans:
                            self.spans += scope.spans
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made


async def test_a_request_and_its_load_are_told_to_the_collector(tmp_path: Path) -> None:
    write_adapter(tmp_path / "alpha", age=3.0)
    async with collector() as kept, replicas(1) as fleet:
        async with running(tmp_path, *fleet.all, otlp_endpoint=kept.url) as gateway:
            await gateway.becomes("alpha", "ready")
            body = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
            parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            answer = await gateway.client.post("/v1/chat/completions", json=body, headers={"traceparent": parent})
            assert answer.status_code == 200
            assert (await gateway.chat("nobody")).status_code == 404
            await gateway.gateway.close()
        request, refused = kept.named("/v1/chat/completions")
        wait, lost_wait = kept.named("wait for a replica")
        (upstream,), (load,) = kept.named("replica"), kept.named("load")
    assert request.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert request.parent_span_id.hex() == "b7ad6b7169203331"
    assert {wait.parent_span_id, upstream.parent_span_id} == {request.span_id}
    assert lost_wait.parent_span_id == refused.span_id
    facts = {pair.key: pair.value.string_value for pair in upstream.attributes}
    assert (facts["lora_gateway.model"], facts["lora_gateway.revision"]) == ("alpha", answer.headers["x-lora-gateway-revision"])
    assert load.end_time_unix_nano > load.start_time_unix_nano
    sent = fleet.all[0].journal.inference("alpha")[0].headers["traceparent"]
    assert sent == f"00-{request.trace_id.hex()}-{upstream.span_id.hex()}-01"


def test_without_opentelemetry_the_start_ends_with_the_remedy(tmp_path: Path) -> None:
    """In a process that cannot import it, as where the extra is not installed."""
    blocker = "import sys; sys.modules['opentelemetry'] = None; from gateway.cli import main; sys.exit(main())"
    args = ["serve", "--adapter-dir", str(tmp_path), "--replica", "http://127.0.0.1:1", "--otlp-endpoint", "http://x:1"]
    ended = subprocess.run([sys.executable, "-c", blocker, *args], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "pip install 'lora-gateway[otel]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(SettingsError, match="--otlp-endpoint"):
        read({"adapter_dir": "/", "replica": ("http://x:1",), "otlp_endpoint": "collector:4318"}, {})
