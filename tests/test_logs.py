"""Log lines: one event is one line, whatever is in it, and keys are not."""

import json
import subprocess
import sys
from typing import Any

import pytest

from gateway.logs import escaped

HOSTILE = "sql\n\x1b[2J\u2028\x7f\ud800"


def logged(format: str, level: str, statements: str) -> str:
    """What these statements write to stderr in a process of their own: logging is set up once per process."""
    start = (
        "import logging, structlog\nfrom gateway.logs import configure\n"
        f"configure({format!r}, {level!r})\nlog = structlog.get_logger('gateway.test')\nhostile = {HOSTILE!r}\n"
    )
    done = subprocess.run([sys.executable, "-c", start + statements], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_of_ours_and_one_of_the_standard_library_look_alike() -> None:
    ours, theirs = events(
        logged("json", "info", "log.info('loaded', adapter='sql')\nlogging.getLogger('uvicorn.error').info('up %s', 1)")
    )
    assert (ours["event"], ours["adapter"], ours["level"], ours["logger"]) == ("loaded", "sql", "info", "gateway.test")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("up 1", "info", "uvicorn.error")
    assert ours.keys() - {"adapter"} == theirs.keys()


def test_auto_is_json_where_stderr_is_no_terminal() -> None:
    assert events(logged("auto", "info", "log.info('x')"))[0]["event"] == "x"


@pytest.mark.parametrize("format", ["console", "json"])
def test_control_characters_stay_in_their_line(format: str) -> None:
    statements = "log.info(hostile, name=hostile, names=[hostile])\nlogging.getLogger('uvicorn').warning('%s', hostile)"
    lines = logged(format, "info", statements).splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("format", ["console", "json"])
def test_a_traceback_cannot_fake_a_line(format: str) -> None:
    text = logged(
        format,
        "info",
        "try:\n    raise ValueError('\\n00:00:00 fake\\x1b')\nexcept ValueError:\n    log.exception('x')",
    )
    assert "\x1b" not in text
    assert "fake" in text
    assert not any(line.startswith("00:00:00") for line in text.splitlines())


@pytest.mark.parametrize("format", ["console", "json"])
def test_keys_are_dropped_by_name_and_behind_bearer(format: str) -> None:
    statements = (
        "headers = {'Authorization': 'sesame', 'x-api-key': 'sesame'}\n"
        "log.info('call', api_key='sesame', replica_api_key='sesame', headers=headers)\n"
        "log.info('Bearer sesame', note='Authorization: bearer sesame')\n"
        "from gateway.settings_kinds import Secret\nlog.info('settings', settings=Secret('sesame'))\n"
        "logging.getLogger('httpx').warning('sent %s', 'Bearer sesame')\n"
    )
    text = logged(format, "info", statements)
    assert "sesame" not in text
    assert text.count("\n") == 4


def test_the_level_holds_for_both_kinds_and_libraries_do_not_chatter() -> None:
    statements = (
        "log.info('ours')\nlogging.getLogger('x').info('theirs')\nlog.warning('kept')\nlogging.getLogger('httpx').info('GET')\n"
    )
    assert [event["event"] for event in events(logged("json", "warning", statements))] == ["kept"]
    assert [event["event"] for event in events(logged("json", "debug", statements))] == ["ours", "theirs", "kept"]


def test_escaped_leaves_every_printable_text_alone() -> None:
    assert escaped("team/Ünï-漢字 @1") == "team/Ünï-漢字 @1"
    assert escaped("a\nb\x1b\u202e\ud800") == "a\\nb\\x1b\\u202e\\ud800"
