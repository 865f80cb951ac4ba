"""What ends a command early: SIGTERM and a closed terminal are taken as Ctrl-C, so whatever cleans up does so for all."""

import signal


def end_as_at_ctrl_c() -> None:
    """From now on SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
