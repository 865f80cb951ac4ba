"""Where replicas come from."""

import asyncio
from pathlib import Path

import pytest

from gateway.control.discovery import DnsSource, FileSource, parse_replicas
from gateway.core.addresses import Address
from tests.waiting import until


def ids(addresses: frozenset[Address]) -> list[str]:
    return sorted(address.id for address in addresses)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param('["http://a:8000", "https://b"]', ["a:8000", "b:443"], id="JSON list"),
        pytest.param("- http://a:8000\n- b:9000\n", ["a:8000", "b:9000"], id="YAML list"),
        pytest.param("- targets: [a:8000, b:8000]\n  labels: {job: vllm}\n", ["a:8000", "b:8000"], id="file_sd groups"),
        pytest.param("- targets: [a]\n  labels: {__scheme__: https}\n", ["a:443"], id="file_sd scheme"),
        pytest.param("[]", [], id="none"),
    ],
)
def test_a_replicas_file_is_a_list_of_urls_or_of_groups(text: str, found: list[str]) -> None:
    assert ids(parse_replicas(text)) == found


@pytest.mark.parametrize("text", ["{}", "- {}", "- 5", "- http://user:pw@a", "- ftp://a", "- http://a:99999", "- [a]"])
def test_a_wrong_replicas_file_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        parse_replicas(text)


async def test_the_file_is_followed_and_a_broken_one_keeps_the_last_set(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    path.write_text("- http://a:8000\n")
    source = FileSource(path, 0.05)
    found = source.addresses()
    assert ids(await anext(found)) == ["a:8000"]
    path.write_text("- http://a:8000\n- nonsense://\n")
    following = asyncio.ensure_future(anext(found))
    await until(lambda: bool(source.trouble))
    path.write_text("- http://a:8000\n- http://b:8000\n")
    async with asyncio.timeout(5):
        assert ids(await following) == ["a:8000", "b:8000"]
    assert source.trouble == ""


async def test_every_address_of_a_name_is_a_replica() -> None:
    async with asyncio.timeout(5):
        assert "127.0.0.1:8000" in ids(await anext(DnsSource("localhost", 8000, 1.0).addresses()))


async def test_one_name_many_pods_the_name_is_resolved_again_and_a_failing_resolver_keeps_the_last_set() -> None:
    replies: list[set[str] | OSError] = [
        OSError("not yet"),
        {"10.0.0.1", "10.0.0.2"},
        OSError("down"),
        {"10.0.0.2", "10.0.0.1"},
        {"10.0.0.2", "fd00::3"},
    ]
    asked: list[str] = []

    async def resolve(host: str, port: int) -> set[str]:
        asked.append(f"{host}:{port}")
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, OSError):
            raise reply
        return reply

    found = DnsSource("vllm", 8000, 0.01, resolve).addresses()
    async with asyncio.timeout(5):
        assert ids(await anext(found)) == ["10.0.0.1:8000", "10.0.0.2:8000"]
        assert ids(await anext(found)) == ["10.0.0.2:8000", "[fd00::3]:8000"]
    assert set(asked) == {"vllm:8000"}
    assert len(asked) == 5
