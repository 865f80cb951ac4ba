"""What a real replica is started with; that it then works is the contract's business."""

import subprocess
import sys

import pytest

from replica.serve import launch


def flags(*arguments: str) -> list[str]:
    return list(launch(["some/model", *arguments], {}).command[4:])


def test_run_time_loading_is_switched_on_whatever_the_environment_says() -> None:
    wanted = launch(["some/model"], {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0", "HOME": "/h"})
    assert wanted.environment == {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "HOME": "/h"}


def test_lora_and_a_shutdown_timeout_are_added() -> None:
    assert flags("--port", "8001") == [
        "serve", "some/model", "--port", "8001", "--enable-lora", "--shutdown-timeout", "30",
    ]  # fmt: skip


@pytest.mark.parametrize("given", [["--shutdown-timeout", "5"], ["--shutdown-timeout=5"], ["--shutdown_timeout=5"]])
def test_a_given_shutdown_timeout_wins(given: list[str]) -> None:
    assert flags(*given) == ["serve", "some/model", *given, "--enable-lora"]


def test_lora_can_be_switched_off() -> None:
    assert "--enable-lora" not in flags("--no-enable-lora")


def test_the_lean_layout_gives_way_to_what_is_given() -> None:
    lean = flags("--cpu-lean", "--max-model-len", "256", "--max-loras=8")
    assert "--cpu-lean" not in lean and lean.count("--max-model-len") == 1
    assert "--max-cpu-loras" not in lean and "--max-loras" not in lean and "--max-loras=8" in lean
    assert lean[lean.index("--distributed-executor-backend") + 1] == "uni"
    environment = launch(["m", "--cpu-lean"], {"OMP_NUM_THREADS": "4"}).environment
    assert (environment["OMP_NUM_THREADS"], environment["HF_HUB_OFFLINE"]) == ("4", "1")


def test_another_python_may_have_vllm() -> None:
    assert launch(["m"], {"LORA_GATEWAY_VLLM_PYTHON": "/engine/python"}).command[0] == "/engine/python"
    assert launch(["m"], {}).command[0] == sys.executable


@pytest.mark.parametrize(
    "arguments, code, text",
    [
        pytest.param(["--help"], 0, "--cpu-lean", id="help"),
        pytest.param([], 2, "the model comes first", id="nothing"),
        pytest.param(["--port", "1"], 2, "the model comes first", id="no-model"),
        pytest.param(["m"], 2, "has no vLLM", id="no-vllm"),
    ],
)
def test_the_command_teaches(arguments: list[str], code: int, text: str) -> None:
    command = [sys.executable, "-m", "replica.serve", *arguments]
    environment = {"PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == code and text in done.stdout + done.stderr
