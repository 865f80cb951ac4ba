"""`lora-gateway publish` into the directory of a running gateway: served under load without a gap."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.adapters import config, safetensors_bytes, write_adapter
from tests.system.fleet import Running, replicas, running
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
BIG = 192 * 1024 * 1024  # bytes: copied and synced in a good part of a second


async def start(*arguments: str, **environ: str) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LORA_GATEWAY_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "publish", *arguments,
        cwd=ROOT, env={**clean, "COLUMNS": "200", **environ}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def publish(*arguments: str, **environ: str) -> tuple[int, str, str]:
    process = await start(*arguments, **environ)
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def held_everywhere(gateway: Running, name: str, revision: str) -> None:
    registry = gateway.gateway.registry

    def holds() -> bool:
        adapter = registry.catalog.adapters.get(name)
        return (
            adapter is not None
            and adapter.digest == revision
            and all(adapter.revision in replica.held for replica in registry.replicas())
        )

    await until(holds, 10.0, f"{name}@{revision} is held everywhere")


async def test_an_adapter_is_published_and_published_anew_while_requests_run(tmp_path: Path) -> None:
    loras, sources = tmp_path / "loras", tmp_path / "sources"
    loras.mkdir()
    first, second = write_adapter(sources / "first"), write_adapter(sources / "second", seed=1)
    async with replicas(2) as sims, running(loras, *sims.all) as gateway:
        await gateway.ready(2)
        code, out, _ = await publish(str(first), "team/sql", "--json", LORA_GATEWAY_ADAPTER_DIR=str(loras))
        assert code == 0
        old = json.loads(out)["revision"]
        await held_everywhere(gateway, "team/sql", old)
        answered: list[tuple[int, str]] = []
        stop = asyncio.Event()

        async def ask() -> None:
            while not stop.is_set():
                answer = await gateway.chat("team/sql")
                answered.append((answer.status_code, answer.headers.get("x-lora-gateway-revision", "")))

        clients = [asyncio.create_task(ask()) for _ in range(4)]
        try:
            code, out, _ = await publish(str(second), "team/sql", "--adapter-dir", str(loras), "--json")
            new = json.loads(out)["revision"]
            await held_everywhere(gateway, "team/sql", new)
            enough = len(answered) + 20
            await until(lambda: len(answered) > enough)
        finally:
            stop.set()
            await asyncio.gather(*clients)
        assert {status for status, _ in answered} == {200}
        assert {revision for _, revision in answered} == {old, new}
        assert answered[0][1] == old
        assert answered[-1][1] == new
        listed = [path.name for path in loras.iterdir()]
        assert sorted(listed) == [".lora-gateway", "team"]
        assert [path.name for path in (loras / "team").iterdir()] == ["sql"]


async def test_wait_ends_when_every_replica_has_it_or_when_it_cannot_come(tmp_path: Path) -> None:
    loras, elsewhere, sources = tmp_path / "loras", tmp_path / "elsewhere", tmp_path / "sources"
    loras.mkdir()
    elsewhere.mkdir()
    small, big = write_adapter(sources / "small"), write_adapter(sources / "big", rank=64)
    async with replicas(2, max_lora_rank=16) as sims, running(loras, *sims.all) as gateway:
        await gateway.ready(2)
        here = ("--adapter-dir", str(loras), "--url", gateway.url)
        code, out, err = await publish(str(small), "sql", *here, "--wait", "10", "--json")
        revision = json.loads(out)["revision"]
        assert (code, err.split(" after ")[0]) == (0, f"sql is ready on 2 replicas at {revision}")
        assert await gateway.state("sql") == "ready"

        code, _, err = await publish(str(big), "big", *here, "--wait", "10")
        assert (code, err.count("\n")) == (1, 1)
        assert err.startswith("lora-gateway: error: big will not come: rejected, ")

        assert (await gateway.client.post("/admin/adapters/sql/pin")).status_code == 200
        code, _, err = await publish(str(write_adapter(small, seed=5)), "sql", *here, "--wait", "10")
        assert (code, f"the name is pinned on {revision}" in err) == (1, True)

        there = ("--adapter-dir", str(elsewhere), "--url", gateway.url)
        code, _, err = await publish(str(small), "other", *there, "--wait", "0.3")
        assert (code, "after 0.3 s: the gateway does not know it yet" in err) == (1, True)


async def test_a_refused_adapter_is_one_line_exit_1_and_the_directory_comes_from_the_file_too(tmp_path: Path) -> None:
    (tmp_path / "loras").mkdir()
    (tmp_path / "gateway.yaml").write_text("adapter-dir: loras\nmax-lora-rank: 16\nreplica: [http://gpu-1:8000]\n")
    source, settings = write_adapter(tmp_path / "big", rank=32), ("--config", str(tmp_path / "gateway.yaml"))
    code, out, err = await publish(str(source), "big", *settings)
    assert (code, out) == (1, "")
    assert err == (
        "lora-gateway: error: not published: rank 32 is above --max-lora-rank 16: "
        "raise it if the replicas' own --max-lora-rank allows\n"
    )
    code, out, err = await publish(str(source), "big one", *settings, "--max-lora-rank", "none")
    assert (code, err) == (0, "")
    assert "lora-gateway explain 'big one'" in out
    code, out, err = await publish(str(source), "big")
    assert (code, out) == (2, "")
    assert "adapter-dir is required" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_a_signal_while_it_copies_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    loras, source = tmp_path / "loras", tmp_path / "source"
    loras.mkdir()
    source.mkdir()
    (source / "adapter_config.json").write_text(json.dumps(config(rank=8)))
    half = bytes(BIG // 2)
    shapes = (("A", (8, BIG // 64)), ("B", (BIG // 64, 8)))
    tensors = {f"base_model.model.layers.0.q_proj.lora_{letter}.weight": ("F32", shape, half) for letter, shape in shapes}
    (source / "adapter_model.safetensors").write_bytes(safetensors_bytes(tensors))
    process = await start(str(source), "sql", "--adapter-dir", str(loras))

    def copying() -> bool:
        assert process.returncode is None
        return any(path.stat().st_size for path in loras.rglob(".publishing-*/*.safetensors"))

    await until(copying, 20.0, "it copies")
    process.send_signal(number)
    async with asyncio.timeout(20):
        await process.communicate()
    assert process.returncode == 130
    assert list(loras.iterdir()) == []
