"""How the process ends."""

import subprocess
import sys

HANGING = """
import asyncio, threading
from contextlib import ExitStack
from gateway.process import ending_within

async def main():
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)  # as in a share that hangs

with ExitStack() as last, asyncio.Runner() as runner:
    runner.run(main())
    last.enter_context(ending_within(0.2, 7))
"""


def test_a_thread_that_hangs_in_a_share_does_not_keep_the_process_from_ending() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGING], timeout=20, check=False, capture_output=True)
    assert ended.returncode == 7, ended.stderr
