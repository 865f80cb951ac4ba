"""`python -m replica.serve MODEL ...`: becomes `vllm serve MODEL ...` with what the gateway needs of a replica.

That is run-time loading of adapters (an environment variable), `--enable-lora`, and a shutdown timeout, without which
vLLM closes its port on SIGTERM and leaves running requests hanging. Everything else is vLLM's own and passed through.
vLLM need not be in this Python: LORA_GATEWAY_VLLM_PYTHON names the one that has it.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

HELP = """\
usage: python -m replica.serve MODEL [--cpu-lean] [any argument of `vllm serve` ...]

Becomes one real vLLM replica for the gateway: `vllm serve MODEL ...` in this process, with

  VLLM_ALLOW_RUNTIME_LORA_UPDATING=True   so that adapters can be loaded while it runs
  --enable-lora
  --shutdown-timeout 30                   so that SIGTERM drains; vLLM's default, 0, leaves running requests hanging

unless you give these yourself. Clients must not reach a replica directly: its load endpoints are open to whoever can.

  --cpu-lean   for tests and demos on a small machine without a GPU and a tiny model (python -m replica.tiny): about
               1.3 GB and 40 s to start instead of 2.9 GB. Adds, unless given: --host 127.0.0.1 --dtype float32
               --max-model-len 512 --max-num-seqs 16 --enforce-eager --distributed-executor-backend uni
               --num-gpu-blocks-override 64 --max-loras 2 --max-cpu-loras 4 --max-lora-rank 16; one thread, 1 GiB of
               KV cache, nothing fetched from a hub.

LORA_GATEWAY_VLLM_PYTHON names the Python that has vLLM (default: this one). For the CPU, `scripts/vllm-venv` makes such
an environment and prints its path; with a GPU, `pip install 'lora-gateway[vllm]'`.

examples:
  python -m replica.serve meta-llama/Llama-3.1-8B-Instruct --port 8001 --max-loras 8 --max-lora-rank 32
  python -m replica.serve demo/model --cpu-lean --port 8001 --served-model-name tiny
"""
VLLM_COMMAND = "vllm.entrypoints.cli.main"
_LEAN_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # whole GiB only
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # or every replica is bound to the same core
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
_LEAN_ARGUMENTS: Mapping[str, str | None] = {
    "--host": "127.0.0.1",
    "--dtype": "float32",
    "--max-model-len": "512",
    "--max-num-seqs": "16",
    "--enforce-eager": None,
    "--distributed-executor-backend": "uni",
    "--num-gpu-blocks-override": "64",
    "--max-lora-rank": "16",
}
_LEAN_SLOTS = {"--max-loras": "2", "--max-cpu-loras": "4"}


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be executed."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def launch(arguments: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """The command and environment of a replica; the given ones win over ours, except for run-time loading."""
    lean = "--cpu-lean" in arguments
    rest = [argument for argument in arguments if argument != "--cpu-lean"]
    given = {_flag(argument) for argument in rest if argument.startswith("--")}
    wanted: dict[str, str | None] = {"--enable-lora": None, "--shutdown-timeout": "30"}
    if "--no-enable-lora" in given:
        del wanted["--enable-lora"]
    if lean:
        # whoever chooses the slots chooses the cache too: vLLM refuses a cache smaller than the slots
        wanted |= {**_LEAN_ARGUMENTS, **({} if given & _LEAN_SLOTS.keys() else _LEAN_SLOTS)}
    python = environment.get("LORA_GATEWAY_VLLM_PYTHON") or sys.executable
    command = [python, "-P", "-m", VLLM_COMMAND, "serve", *rest]
    for flag, value in wanted.items():
        if flag not in given:
            command += [flag] if value is None else [flag, value]
    ours = {**(_LEAN_ENVIRONMENT if lean else {}), **environment, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    return Launch(tuple(command), ours)


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if "-h" in given or "--help" in given:
        print(HELP, end="")
        return 0
    if not given or given[0].startswith("-"):
        print(HELP.partition("\n")[0], file=sys.stderr)
        print("replica.serve: the model comes first; --help says more", file=sys.stderr)
        return 2
    wanted = launch(given, os.environ)
    problem = _missing(wanted.command[0])
    if problem:
        print(f"replica.serve: {problem}", file=sys.stderr)
        return 2
    return _become(wanted)


def _become(wanted: Launch) -> NoReturn:
    sys.stdout.flush()
    os.execvpe(wanted.command[0], list(wanted.command), dict(wanted.environment))


def _flag(argument: str) -> str:
    """vLLM takes `--a_b=1` for `--a-b 1`."""
    return argument.partition("=")[0].replace("_", "-")


def _missing(python: str) -> str:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        found = subprocess.run([python, "-P", "-c", look], check=False, capture_output=True).returncode == 0
    except OSError as error:
        return f"{python} (LORA_GATEWAY_VLLM_PYTHON) cannot be run: {error.strerror}"
    if found:
        return ""
    return (
        f"{python} has no vLLM. For the CPU: LORA_GATEWAY_VLLM_PYTHON=$(scripts/vllm-venv)/bin/python; "
        "with a GPU: pip install 'lora-gateway[vllm]'"
    )


if __name__ == "__main__":
    sys.exit(main())
