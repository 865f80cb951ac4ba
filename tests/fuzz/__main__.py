"""Fuzz the data path: `python -m tests.fuzz --seconds 600 [--side client|replica] [--adapter protocol|asgi] [--seed N]`.

Cases are made from the seed and their number alone: what is found is told with the command that runs its batch again.
Ends with 1 at the first find.
"""

import argparse
import asyncio
import logging
import secrets
import sys
from random import Random
from time import monotonic

import uvloop

from tests.fuzz import client_side, replica_side
from tests.fuzz.arena import Found, arena

SIDES = {"client": client_side.run_case, "replica": replica_side.run_case}
BATCH = 16  # cases at once


async def fuzz(side: str, adapter: str, seed: int, *, seconds: float, batches: int | None = None, first: int = 0) -> int:
    """Batches of cases until the time or their number is over; how many cases that were. Raises Found."""
    run_case = SIDES[side]
    end, batch = monotonic() + seconds, first
    async with arena(adapter) as place:
        while monotonic() < end and (batches is None or batch < first + batches):
            names = [f"{side}-{seed}-{batch}-{n}" for n in range(BATCH)]
            try:
                results = await asyncio.gather(*(run_case(place, name, Random(name)) for name in names), return_exceptions=True)
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
                await place.settled()
            except Exception as error:
                again = f"python -m tests.fuzz --side {side} --adapter {adapter} --seed {seed} --first {batch} --batches 1"
                raise Found(f"{error!r}\n  again: {again}") from error
            batch += 1
    return (batch - first) * BATCH


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="for each side and adapter")
    parser.add_argument("--side", choices=sorted(SIDES), action="append")
    parser.add_argument("--adapter", choices=["protocol", "asgi"], action="append")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    parser.add_argument("--first", type=int, default=0, help="the number of the first batch")
    parser.add_argument("--batches", type=int)
    options = parser.parse_args()
    logging.disable()  # uvicorn tells every malformed request
    for side in options.side or sorted(SIDES):
        for adapter in options.adapter or ["protocol"]:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                work = fuzz(side, adapter, options.seed, seconds=options.seconds, batches=options.batches, first=options.first)
                try:
                    cases = runner.run(work)
                except Found as found:
                    print(f"{side}, {adapter}: {found}", file=sys.stderr)
                    return 1
            print(f"{side}, {adapter}: {cases} cases, seed {options.seed}: nothing found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
