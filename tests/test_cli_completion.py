"""Shell completion as shells use it: the printed script, and what the program offers for a word."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters import write_adapter
from tests.system.fleet import replicas, running
from tests.test_cli import only_line, run

ROOT = Path(__file__).parent.parent


async def offered(*words: str, url: str = "http://127.0.0.1:9", shell: str = "bash") -> list[str]:
    """What is offered for the last of the words."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LORA_GATEWAY_")}
    asked = {
        "_LORA_GATEWAY_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(("lora-gateway", *words)),
        "COMP_CWORD": str(len(words)),
        "LORA_GATEWAY_URL": url,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", cwd=ROOT, env={**clean, **asked}, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(20):
        out, _ = await process.communicate()
    return [line.partition(",")[2] for line in out.decode().splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_takes_its_script(shell: str) -> None:
    done = run("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_LORA_GATEWAY_COMPLETE" in done.stdout
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    checked = subprocess.run([program, "-n", "-c", done.stdout], capture_output=True, text=True, timeout=20)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_another_shell_is_told_in_one_line() -> None:
    done = run("completion", "tcsh")
    assert (done.returncode, "is not one of" in only_line(done.stderr)) == (2, True)


async def test_bash_completes_a_command_with_the_script(tmp_path: Path) -> None:
    (tmp_path / "lora-gateway").write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m gateway "$@"\n')
    (tmp_path / "lora-gateway").chmod(0o755)
    script = (
        'eval "$(lora-gateway completion bash)"; COMP_WORDS=(lora-gateway expl); COMP_CWORD=1;'
        ' _lora_gateway_completion lora-gateway; echo "${COMPREPLY[@]}"'
    )
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    )
    out, _ = await process.communicate()
    assert out == b"explain\n"


async def test_flags_and_their_words_are_offered() -> None:
    flags, words, folder = await asyncio.gather(
        offered("serve", "--snapshot"), offered("serve", "--snapshots", ""), offered("serve", "--adapter-dir", "x")
    )
    assert flags == ["--snapshots", "--snapshot-dir", "--snapshot-grace"]
    assert words == ["link", "copy", "off"]
    assert folder == ["x"]


async def test_names_come_from_the_gateway_but_only_those_that_a_shell_takes_literally(tmp_path: Path) -> None:
    for number, name in enumerate(("sql", "team/süß", "x;reboot", "$(reboot)", "two words")):
        write_adapter(tmp_path / name, seed=number, age=10)
    async with replicas(1) as sims, running(tmp_path, *sims.all) as gateway:
        await gateway.becomes("sql", "ready")
        everything, some, pinned, drained = await asyncio.gather(
            offered("adapters", "", url=gateway.url),
            offered("explain", "te", url=gateway.url),
            offered("adapters", "pin", "", url=gateway.url),
            offered("replicas", "drain", "127", url=gateway.url),
        )
        assert everything == ["load", "pin", "retry", "show", "unpin", "sql", "team/süß"]
        assert some == ["team/süß"]
        assert pinned == ["sql", "team/süß"]
        assert drained == [sim.url.removeprefix("http://") for sim in sims.all]


async def test_without_a_gateway_nothing_is_offered_and_nothing_is_said() -> None:
    assert await offered("explain", "") == []
