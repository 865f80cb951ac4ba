"""The commands that ask a gateway, run as processes against a whole gateway with simulated replicas."""

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.adapters import write_adapter
from tests.system.fleet import Running, Sims, replicas, running
from tests.waiting import until_true

ROOT = Path(__file__).parent.parent
ODD = "team/süß & two words"


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> dict[str, list[str]]:
        """The words of each line, by the first."""
        return {line.split()[0]: line.split() for line in self.out.splitlines() if line.strip()}


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LORA_GATEWAY_", "NO_COLOR"))}
    return {**clean, "COLUMNS": "200", "TERM": "xterm-256color", **more}


async def run(*arguments: str, **environ: str) -> Done:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *arguments,
        cwd=ROOT, env=environment(**environ), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    return Done(process.returncode or 0, out.decode(), err.decode())


class Fleet(NamedTuple):
    gateway: Running
    sims: Sims
    adapters: Path

    async def run(self, *arguments: str, **environ: str) -> Done:
        return await run(*arguments, LORA_GATEWAY_URL=self.gateway.url, **environ)


@asynccontextmanager
async def fleet(root: Path, count: int = 2, **settings: Any) -> AsyncIterator[Fleet]:
    write_adapter(root / "sql", age=10)
    write_adapter(root / ODD, seed=1, age=10)
    async with replicas(count) as sims, running(root, *sims.all, **settings) as gateway:
        await gateway.ready(count)
        await gateway.becomes("sql", "ready")
        await gateway.becomes(ODD, "ready")
        yield Fleet(gateway, sims, root)


async def test_adapters_are_listed_and_one_is_shown_in_detail_whatever_its_name(tmp_path: Path) -> None:
    async with fleet(tmp_path) as f:
        listed, shown, as_json = await asyncio.gather(
            f.run("adapters"), f.run("adapters", ODD), f.run("adapters", "show", ODD, "--json")
        )
        assert (listed.code, shown.code, as_json.code) == (0, 0, 0)
        row = await f.gateway.adapter("sql")
        assert row is not None
        assert listed.rows["sql"] == ["sql", row["revision"], "base-a", "8", "ready", "2", "of", "2", "0"]
        document = json.loads(as_json.out)
        assert document["name"] == ODD
        assert f"revision     {document['revision']}" in shown.out
        assert f"folder       {tmp_path}/{ODD}\n" in shown.out
        for sim in f.sims.all:
            host = sim.url.removeprefix("http://")
            assert f"{host}  loaded  {ODD}" in shown.out
        assert document["revision"] in shown.out.split("snapshot")[-1]


async def test_load_and_retry_are_told_and_an_unknown_name_is_one_line_and_exit_1(tmp_path: Path) -> None:
    async with fleet(tmp_path) as f:
        load, retry, unknown = await asyncio.gather(
            f.run("adapters", "load", ODD, "--wait", "5"),
            f.run("adapters", "retry", "sql"),
            f.run("adapters", "load", "no\x1bpe"),
        )
        assert (load.code, load.out.split(" is asked for")[0]) == (0, ODD)
        assert load.err.startswith(f"{ODD} is ready on 2 replicas at ")
        assert (retry.code, retry.out) == (0, "sql is tried again everywhere\n")
        assert (unknown.code, unknown.out) == (1, "")
        assert unknown.err == "lora-gateway: error: There is no adapter 'no\\x1bpe'.\n"


async def test_a_rollback_in_one_call_pin_and_unpin(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as f:
        first = await f.gateway.adapter("sql")
        assert first is not None
        write_adapter(tmp_path / "sql", seed=7, age=10)

        async def changed() -> bool:
            row = await f.gateway.adapter("sql")
            return row is not None and row["revision"] != first["revision"] and row["state"] == "ready"

        await until_true(changed, 8.0)
        old = first["revision"]
        pinned = await f.run("adapters", "pin", f"sql@{old}")
        assert (pinned.code, pinned.out.split(";")[0]) == (0, f"sql is pinned on {old}")
        listed = await f.run("adapters", "--json")
        assert {row["name"]: row["pinned"] for row in json.loads(listed.out)["adapters"]} == {"sql": True, ODD: False}
        assert f"revision     {old} (pinned)" in (await f.run("adapters", "sql")).out
        refused, wrong = await asyncio.gather(
            f.run("adapters", "pin", "sql", "0" * 12), f.run("adapters", "pin", "sql", "latest")
        )
        assert (refused.code, refused.err.count("\n")) == (1, 1)
        assert "There is no snapshot of 'sql' at that revision" in refused.err
        assert (wrong.code, "no revision: give its 12 hex digits" in wrong.err) == (2, True)
        assert (await f.run("adapters", "unpin", "sql")).out == "sql follows the directory again\n"
        assert (await f.gateway.adapter("sql") or {})["pinned"] is False


async def test_a_replica_is_drained_and_comes_back(tmp_path: Path) -> None:
    async with fleet(tmp_path) as f:
        first, second = (sim.url.removeprefix("http://") for sim in f.sims.all)
        assert (await f.run("replicas", "drain", first)).code == 0
        listed = await f.run("replicas")
        assert (listed.rows[first][1], listed.rows[second][1]) == ("draining", "ready")
        assert (await f.run("replicas", "undrain", first)).out == f"{first} is back in use\n"
        await f.gateway.ready(2)
        unknown = await f.run("replicas", "drain", "gpu-9:8000")
        assert (unknown.code, unknown.err) == (1, "lora-gateway: error: There is no replica 'gpu-9:8000'.\n")


async def test_the_admin_key_may_stand_before_or_after_the_subcommand_in_a_file_or_a_variable(tmp_path: Path) -> None:
    from gateway.settings_kinds import Secret

    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "admin").write_text("sesame\n")
    loras = tmp_path / "loras"
    loras.mkdir()
    async with replicas(1) as sims, running(loras, *sims.all, admin_api_key=Secret("sesame")) as gateway:
        f = Fleet(gateway, sims, loras)
        place = f"@{keys}/admin"
        before, after, variable, missing, wrong = await asyncio.gather(
            f.run("replicas", "--admin-api-key", place, "drain", "gpu-9:8000"),
            f.run("replicas", "drain", "gpu-9:8000", "--admin-api-key", place),
            f.run("replicas", LORA_GATEWAY_ADMIN_API_KEY=place),
            f.run("replicas"),
            f.run("adapters", "load", "sql", "--admin-api-key", "simsala"),
        )
        assert "There is no replica" in before.err
        assert "There is no replica" in after.err
        assert variable.code == 0
        assert (missing.code, "wants its admin key: give --admin-api-key KEY or @FILE" in missing.err) == (1, True)
        assert (wrong.code, "refused the admin key" in wrong.err, "simsala" in wrong.err) == (1, True, False)


async def test_what_is_mistyped_is_one_line_with_the_remedy() -> None:
    mistyped, address, nobody = await asyncio.gather(
        run("adapters", "laod", "sql"), run("explain", "sql", "--url", "gpu-1:8000"), run("replicas", "--url", "http://[::1")
    )
    assert (mistyped.code, mistyped.err) == (2, "lora-gateway: error: No such command 'laod'. Did you mean 'load'?\n")
    remedy = "is no address: give --url http://HOST:PORT\n"
    assert (address.code, address.err) == (1, f"lora-gateway: error: 'gpu-1:8000' {remedy}")
    assert (nobody.code, nobody.err) == (1, f"lora-gateway: error: 'http://[::1' {remedy}")


async def test_an_output_that_cannot_show_a_name_shows_it_escaped(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as f:
        done = await f.run("adapters", ODD, PYTHONIOENCODING="ascii")
        assert (done.code, done.err) == (0, "")
        assert "team/s\\xfc\\xdf" in done.out


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self._arguments, self._environ = arguments, environ
        self.shown = b""

    async def __aenter__(self) -> "Terminal":
        self._master, slave = pty.openpty()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *self._arguments,
            cwd=ROOT, env=environment(**self._environ), stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        asyncio.get_running_loop().add_reader(self._master, self._read)
        return self

    def _read(self) -> None:
        try:
            self.shown += os.read(self._master, 65536)
        except OSError:  # the other end is closed
            asyncio.get_running_loop().remove_reader(self._master)

    async def shows(self, part: bytes) -> None:
        async def does() -> bool:
            return part in self.shown

        await until_true(does, 15.0, f"{part!r} in {self.shown[-400:]!r}")

    async def told(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        async with asyncio.timeout(10):
            return await self._process.wait()

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        os.close(self._master)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_watch_draws_anew_in_colour_and_gives_the_screen_back_at_its_end(tmp_path: Path, number: signal.Signals) -> None:
    async with fleet(tmp_path, 1) as f, Terminal("status", "--watch", "--url", f.gateway.url) as terminal:
        await terminal.shows(b"\x1b[32mready\x1b[0m")
        write_adapter(tmp_path / "late", seed=3, age=10)
        await terminal.shows(b"late")
        assert await terminal.told(number) == 0
        await terminal.shows(b"\x1b[?1049l")  # the screen as it was before


async def test_no_color_takes_the_colours_out(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as f, Terminal("status", "--url", f.gateway.url, NO_COLOR="1") as plain:
        await plain.shows(b"in flight")
        await plain.shows(ODD.encode())
        assert b"\x1b[3" not in plain.shown


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
async def test_watch_in_a_pipe_writes_one_look_after_the_other(tmp_path: Path, flags: tuple[str, ...]) -> None:
    async with fleet(tmp_path, 1) as f:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "status", "--watch", "--url", f.gateway.url, *flags,
            cwd=ROOT, env=environment(PYTHONUNBUFFERED="1"), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            looks = 0
            async with asyncio.timeout(20):
                while looks < 2:
                    line = await process.stdout.readline()
                    assert b"\x1b" not in line
                    if flags:
                        assert json.loads(line)["gateway"]["ready"] is True
                    looks += line.startswith((b"gateway ready", b"{"))
        finally:
            process.send_signal(2)
            await process.wait()
        assert process.returncode == 0


async def test_explain_says_who_answers_and_exits_0(tmp_path: Path) -> None:
    async with fleet(tmp_path) as f:
        first, second = (sim.url.removeprefix("http://") for sim in f.sims.all)
        await f.run("replicas", "drain", second)
        done, as_json = await asyncio.gather(f.run("explain", ODD), f.run("explain", ODD, "--json"))
        assert (done.code, as_json.code) == (0, 0)
        assert done.out.startswith(f"a request for {ODD} would be answered now\n")
        assert f"why         {first} answers: it is the only one that can now" in done.out
        assert done.rows[first][1] == "picked"
        assert "draining: " in done.out
        assert json.loads(as_json.out)["picked"] == first
        answered = await f.gateway.chat(ODD)
        assert answered.headers["x-lora-gateway-replica"] == first


async def test_explain_says_why_not_and_exits_1(tmp_path: Path) -> None:
    (write_adapter(tmp_path / "half", age=10) / "adapter_model.safetensors").unlink()
    async with fleet(tmp_path, 1) as f:
        unknown, half = await asyncio.gather(f.run("explain", "no\x1b[2Jpe"), f.run("explain", "half"))
        assert (unknown.code, half.code) == (1, 1)
        assert "\x1b" not in unknown.out
        assert "answer      404 model_not_found" in unknown.out
        assert "stands for  a folder whose files are incomplete" in half.out
        write_adapter(tmp_path / "new", seed=4, age=10)
        fresh = await f.run("explain", "new")  # the directory is looked at, as for a request
        assert fresh.code == 0
