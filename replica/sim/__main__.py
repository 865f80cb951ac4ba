"""`python -m replica.sim`: simulated replicas on ports, in one process."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from replica.sim.options import Faults, Options, parse_fault
from replica.sim.replica import Sim

DESCRIPTION = """\
Simulated vLLM replicas: they load real adapter folders, refuse what vLLM 0.32 refuses, in its words, and answer with
the text that the adapter says. No model, no GPU; many fit into one process, each with its own state."""

EPILOG = """\
faults, as --fault NAME=VALUE from the start, or at run time on the replica's own port:
  curl -X POST   localhost:8001/sim/faults -d '{"hang": true}'     change some
  curl -X DELETE localhost:8001/sim/faults                         heal all
  curl           localhost:8001/sim/log                            loads, unloads, requests, and how each ended

  hang=true                    the engine is frozen: generation and loads give nothing, /health stays 200
  health_status=503            /health answers this
  models_status=500            /v1/models answers this
  hide_models=adapters|all     /v1/models leaves these out
  load_status=500 load_body=TEXT   loads are refused with this; load_seconds=5 slows them
  unload_status=500            unloads are refused
  status=500 body=TEXT         inference is answered with this
  token_seconds=0.1 first_byte_seconds=2   slow generation
  rst_after_chunks=3           a stream is reset after so many chunks; fin_after_chunks closes it without its end
  close_before_answer=rst|fin  the connection ends once a request was read
  die_on_load=kill|engine die_on_request=kill|engine   the replica dies when asked
  names=["sql"]                the load and inference faults above concern these models only
  times=2                      all faults are healed after so many spoilt calls
  die=kill|engine forget=true  (POST only) act at once: die now, drop all adapters now

kill is SIGKILL: every connection reset, port closed. engine: streams end with an error event, then the port closes.
SIGTERM without --shutdown-timeout closes the port and leaves running requests hanging, as vLLM does by default.

examples:
  python -m replica.sim --port 8001 --port 8002 --adapter-dir demo/adapters
  python -m replica.sim --replicas 100 --port 9000 --adapter-dir demo/adapters     ports 9000 to 9099
  python -m replica.sim --port 8001 --adapter-dir demo/adapters --restart-seconds 5 --fault die_on_request=engine
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        faults = Faults().changed(dict(parse_fault(fault) for fault in given.fault))
        ports = _ports(given.port, given.replicas)
    except ValueError as error:
        parser.error(str(error))
    try:
        return asyncio.run(_run([Sim(_options(given), port=port, faults=faults) for port in ports]))
    except OSError as error:
        print(f"replica.sim: {error}", file=sys.stderr)
        return 1


async def _run(sims: list[Sim]) -> int:
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        if stopping:
            for sim in sims:
                sim.kill()
        stopping.extend(loop.create_task(sim.terminate()) for sim in sims)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    for sim in sims:
        await sim.start()
        print(sim.url, flush=True)
    forever = any(sim.options.restart_seconds is not None for sim in sims)
    while not stopping:
        exits = [loop.create_task(sim.exited.wait()) for sim in sims]
        await asyncio.wait(exits)
        if not forever:
            break
        await asyncio.sleep(0.1)
    await asyncio.gather(*stopping)
    for sim in sims:
        await sim.stop()
    return 0  # vLLM's own exit code is 0 too, even when its engine has died


def _ports(ports: list[int], replicas: int | None) -> list[int]:
    if replicas is None:
        return ports
    if replicas < 1 or len(ports) > 1:
        raise ValueError("--replicas takes a number from 1 and at most one --port, the first")
    first = ports[0]
    return [first + number if first else 0 for number in range(replicas)]


def _options(given: argparse.Namespace) -> Options:
    return Options(
        adapter_dirs=tuple(given.adapter_dir),
        model_names=tuple(given.served_model_name or ["tiny"]),
        model_root=given.model_root,
        host=given.host,
        max_loras=given.max_loras,
        max_cpu_loras=given.max_cpu_loras,
        max_lora_rank=given.max_lora_rank,
        max_num_seqs=given.max_num_seqs,
        max_model_len=given.max_model_len,
        reply_tokens=given.reply_tokens,
        token_seconds=given.token_seconds,
        first_byte_seconds=given.first_byte_seconds,
        load_seconds=given.load_seconds,
        api_key=given.api_key,
        enable_lora=not given.no_enable_lora,
        runtime_lora=not given.no_runtime_lora,
        pooling=not given.generate_only,
        shutdown_timeout=given.shutdown_timeout,
        start_seconds=given.start_seconds,
        start_open=given.start_open,
        restart_seconds=given.restart_seconds,
        control=not given.no_control,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m replica.sim",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plain = Options()
    add = parser.add_argument
    add("--port", type=int, action="append", required=True, help="one replica each; 0: the system chooses; repeatable")
    add("--replicas", type=int, metavar="N", help="N replicas on the ports from --port upwards")
    add("--host", default=plain.host)
    add(
        "--adapter-dir",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="what the replica mounts: a path outside is not found; repeatable; without it every path is opened",
    )
    add(
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="base model, then aliases; repeatable (default tiny)",
    )
    add(
        "--model-root",
        default=plain.model_root,
        help="the base model's folder, `root` in the list; if it exists, adapters of another width are refused",
    )
    add("--api-key", metavar="KEY", help="guards /v1 and /v2, nothing else, as vLLM's does")
    add("--no-runtime-lora", action="store_true", help="as without VLLM_ALLOW_RUNTIME_LORA_UPDATING: loads are 404")
    add("--no-enable-lora", action="store_true", help="as without --enable-lora: loads are 500")
    add("--generate-only", action="store_true", help="no embeddings, scores, audio: as a generating model")
    add("--no-control", action="store_true", help="no /sim endpoints")
    add("--start-open", action="store_true", help="while starting the port is open and /health 503")
    for name, text in _NUMBERS.items():
        default = getattr(plain, name)
        kind = float if name.endswith(("seconds", "timeout")) else int
        add(f"--{name.replace('_', '-')}", type=kind, default=default, metavar="N", help=f"{text} (default {default})")
    add("--fault", action="append", default=[], metavar="NAME=VALUE", help="see below; repeatable")
    return parser


_NUMBERS = {
    "max_loras": "adapters in one batch",
    "max_cpu_loras": "adapters kept in memory, 0: as many as max-loras",
    "max_lora_rank": "a higher rank is refused",
    "max_num_seqs": "requests in one batch",
    "max_model_len": "tokens, one per byte",
    "reply_tokens": "where an answer ends that names no max_tokens",
    "token_seconds": "time per token",
    "first_byte_seconds": "additional time to the first token",
    "load_seconds": "time per load, which stalls the replica's streams",
    "shutdown_timeout": "drain this long after SIGTERM, 0: hang",
    "start_seconds": "refuse connections this long at every start",
    "restart_seconds": "a dead replica comes back empty after this",
}


if __name__ == "__main__":
    sys.exit(main())
