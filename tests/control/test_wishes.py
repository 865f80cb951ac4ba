"""The files of people's wishes, `aliases.yaml` and `state.yaml`, are as hostile as everything in the directory."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
import yaml

from gateway.control import pins as pins_module
from gateway.control.alias_file import NO_ALIASES, parse_aliases
from gateway.control.discovery import parse_replicas
from gateway.control.followed_file import FollowedFile
from gateway.control.pins import Pins
from gateway.control.plain_yaml import parse_yaml

DIGEST = "0123456789ab"

TRAPS = [
    pytest.param(b"a: !!bool x\n", id="a tag that does not fit"),
    pytest.param(b'a: !!int ""\n', id="no number"),
    pytest.param(b"a: !!timestamp x\n", id="no date"),
    pytest.param(b"a: 1" + b":10" * 300 + b".5\n", id="a number in base 60 that is too big"),
    pytest.param(b"[" * 100_000, id="deep"),
    pytest.param(b"a: {b: " + b"9" * 5000 + b"}\n", id="5000 digits"),
    pytest.param(b"&a {b: *a}\n", id="it holds itself"),
    pytest.param(b"\xff\xfe\x00", id="no UTF-8"),
    pytest.param(b"a: \x00", id="NUL"),
    pytest.param(b"? [a]\n: b\n", id="a list as a key"),
]


@pytest.mark.parametrize("text", TRAPS)
def test_no_text_in_aliases_yaml_raises_and_the_last_good_one_stays(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "aliases.yaml"
    path.write_text("chat: alpha\n")
    file = FollowedFile(path, tmp_path, parse_aliases, NO_ALIASES)
    assert list(file.read()) == ["chat"]
    path.write_bytes(text)
    assert list(file.read()) == ["chat"]
    assert file.trouble


@pytest.mark.parametrize("text", [b"- !!bool x\n", b"[" * 100_000])
def test_no_text_in_a_replicas_file_raises_what_its_reader_does_not_expect(text: bytes) -> None:
    with pytest.raises((ValueError, yaml.YAMLError)):
        parse_replicas(text.decode())


def test_plain_yaml_has_the_numbers_that_people_write() -> None:
    assert parse_yaml("{a: 90, b: 0.5, c: .5, d: -3, e: 1., f: 1.0e-3, g: yes, h: ~}") == {
        "a": 90, "b": 0.5, "c": 0.5, "d": -3, "e": 1.0, "f": 0.001, "g": True, "h": None,
    }  # fmt: skip
    assert parse_yaml("") is None


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("gold")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".state.yaml.lock").symlink_to(precious)
    with pytest.raises(OSError) as refused:
        Pins(home).set("alpha", DIGEST)
    assert refused.value.errno == errno.ELOOP
    assert precious.read_text() == "gold"


def test_a_lock_that_is_a_pipe_is_refused_and_nobody_waits_for_its_other_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".state.yaml.lock")
    with pytest.raises(ValueError, match="not a regular file"):
        Pins(tmp_path).set("alpha", DIGEST)


def test_a_lock_that_somebody_keeps_is_waited_for_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins_module, "LOCK_WAIT", 0.1)
    with (tmp_path / ".state.yaml.lock").open("w") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process"):
            Pins(tmp_path).set("alpha", DIGEST)
    pins = Pins(tmp_path)
    pins.set("alpha", DIGEST)
    assert dict(pins.read()) == {"alpha": DIGEST}
