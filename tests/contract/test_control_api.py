"""Loading and unloading adapters: what vLLM 0.32 answers, and what the simulated replica therefore answers."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.subject import LOAD, UNLOAD, Client, Subject, new_name

ENGINE = "Call to add_lora method failed: "
HEADER = ENGINE + "Error while deserializing header: "


def error(answer: httpx.Response) -> tuple[int, str, str, str | None]:
    """Status, type, message, param, after the shape of the whole was checked."""
    body = answer.json()
    assert body.keys() == {"error"} and body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == answer.status_code
    assert answer.headers["content-type"] == "application/json"
    return answer.status_code, body["error"]["type"], body["error"]["message"], body["error"]["param"]


def shown(path: Path) -> str:
    """A path in an error message: vLLM hides those below the usual top folders."""
    return "<path>" if path.parts[1] in ("home", "mnt", "opt", "root", "srv", "tmp", "usr", "var") else str(path)


async def test_a_load_is_answered_in_plain_text_without_a_content_type(client: Client, subject: Subject) -> None:
    name = new_name()
    answer = await client.load(name, subject.adapter("abc"))
    assert (answer.status_code, answer.text) == (200, f"Success: LoRA adapter '{name}' added successfully.")
    assert "content-type" not in answer.headers
    assert await client.says(name) == "abcabcab"


async def test_a_name_that_is_there_is_refused_whatever_the_path(client: Client, subject: Subject) -> None:
    folder = subject.adapter("abc")
    name = await client.loaded(folder)
    for path in (folder, subject.adapter("xyz"), subject.folder / "nowhere"):
        status, kind, message, _ = error(await client.load(name, path))
        assert (status, kind) == (400, "InvalidUserInput")
        assert message.startswith(f"The lora adapter '{name}' has already been loaded.")


@pytest.mark.parametrize("name", ["tiny", "alias"])
async def test_a_base_models_name_is_refused(client: Client, subject: Subject, name: str) -> None:
    answer = await client.load(name, subject.adapter("abc"))
    message = f"The lora adapter '{name}' conflicts with a served base model."
    assert error(answer) == (400, "InvalidUserInput", message, None)


@pytest.mark.parametrize("what", ["nothing", "an empty folder", "no config"])
async def test_a_path_without_an_adapter_is_not_found(client: Client, subject: Subject, what: str) -> None:
    path, name = subject.folder / new_name(), new_name()
    if what != "nothing":
        path.mkdir()
    if what == "no config":
        (path / "adapter_model.safetensors").write_bytes(b"x" * 100)
    answer = await client.load(name, path)
    assert error(answer) == (
        404,
        "NotFoundError",
        f"Loading lora {name} failed: No adapter found for {shown(path)}",
        None,
    )


async def test_a_path_that_is_a_file_is_an_engine_error_with_errno(client: Client, subject: Subject) -> None:
    status, _, message, _ = error(await client.load(new_name(), subject.adapter("abc") / "adapter_config.json"))
    assert status == 500
    assert message.startswith(f"{ENGINE}[Errno 20] Not a directory: ")


def _config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


def _weights(folder: Path, change: Callable[[bytes], bytes]) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(change(path.read_bytes()))


def _raw_config(folder: Path, text: str) -> None:
    (folder / "adapter_config.json").write_text(text)


def _renamed(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content and len(old) == len(new)
    return content.replace(old, new)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "junk-config": (lambda f: _raw_config(f, "junk"), ENGINE + "Expecting value: line 1 column 1 (char 0)"),
    "config-is-a-list": (
        lambda f: _raw_config(f, "[]"),
        ENGINE + "list indices must be integers or slices, not str",
    ),
    "no-rank": (lambda f: _config(f, r=...), ENGINE + "Missing required configuration fields: {'r'}"),
    "rank-zero": (lambda f: _config(f, r=0), ENGINE + "LoRA rank `r` must be a positive integer, got 0."),
    "rank-too-big": (lambda f: _config(f, r=32), ENGINE + "LoRA rank 32 is greater than max_lora_rank 16."),
    "rank-pattern-too-big": (
        lambda f: _config(f, rank_pattern={"q_proj": 64}),
        ENGINE + "LoRA rank 64 is greater than max_lora_rank 16.",
    ),
    "dora": (lambda f: _config(f, use_dora=True), ENGINE + "vLLM does not yet support DoRA."),
    "bias": (lambda f: _config(f, bias="lora_only"), ENGINE + "Adapter bias is not supported."),
    "dora-and-bias": (
        lambda f: _config(f, use_dora=True, bias="all"),
        ENGINE + "vLLM does not yet support DoRA. Adapter bias is not supported.",
    ),
    "modules-to-save": (
        lambda f: _config(f, modules_to_save=["lm_head"]),
        ENGINE + 'vLLM only supports modules_to_save being either None or ["classifier", "score"] for classification '
        "models. Unsupported modules_to_save: ['lm_head']",
    ),
    "truncated": (lambda f: _weights(f, lambda w: w[:-100]), HEADER + "incomplete metadata, file not fully covered"),
    "too-long": (lambda f: _weights(f, lambda w: w + b"x"), HEADER + "incomplete metadata, file not fully covered"),
    "corrupt": (lambda f: _weights(f, lambda w: b"\xff" * len(w)), HEADER + "header too large"),
    "empty-file": (lambda f: _weights(f, lambda w: b""), HEADER + "header too small"),
    "header-cut": (lambda f: _weights(f, lambda w: w[:50]), HEADER + "invalid header length"),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in BROKEN.items()])
async def test_a_broken_adapter_is_refused_by_the_engine_which_lives_on(
    client: Client, subject: Subject, case: tuple[Callable[[Path], None], str]
) -> None:
    breaks, message = case
    folder = subject.adapter("abc")
    breaks(folder)
    assert error(await client.load(new_name(), folder)) == (500, "InternalServerError", message, None)
    assert (await client.http.get("/health")).status_code == 200


async def test_an_adapter_without_weights_is_refused(client: Client, subject: Subject) -> None:
    folder = subject.adapter("abc")
    (folder / "adapter_model.safetensors").unlink()
    message = f"{ENGINE}{shown(folder)} doesn't contain tensors"
    assert error(await client.load(new_name(), folder)) == (500, "InternalServerError", message, None)


async def test_weights_for_another_model_are_refused(client: Client, subject: Subject) -> None:
    width = "The size of tensor a (128) must match the size of tensor b (256) at non-singleton dimension 1"
    assert error(await client.load(new_name(), subject.adapter(hidden=256)))[2] == ENGINE + width
    rank = "The size of tensor a (16) must match the size of tensor b (40) at non-singleton dimension 0"
    assert error(await client.load(new_name(), subject.adapter(rank=40, r=8)))[2] == ENGINE + rank


async def test_unknown_modules_are_refused_and_named(client: Client, subject: Subject) -> None:
    folder = subject.adapter("abc")
    _weights(folder, lambda content: _renamed(content, b"layers.1.mlp.up_proj", b"layers.1.mlp.uq_proj"))
    status, kind, message, _ = error(await client.load(new_name(), folder))
    assert (status, kind) == (500, "InternalServerError")
    assert message.startswith(f"{ENGINE}While loading {shown(folder)}, expected target modules in {{")
    assert "but received ['model.layers.1.mlp.uq_proj', 'model.layers.1.mlp.uq_proj']. Please verify" in message


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"base_model_name_or_path": "another/model"}, id="wrong-base"),
        pytest.param({"base_model_name_or_path": None}, id="null-base"),
        pytest.param({"brand_new": {"a": [1]}, "peft_version": "0.99"}, id="unknown-keys"),
        pytest.param({"use_rslora": True}, id="rslora"),
    ],
)
async def test_what_the_engine_does_not_check_is_accepted(client: Client, subject: Subject, changes: dict[str, Any]) -> None:
    await client.loaded(subject.adapter("abc", **changes))


@pytest.mark.parametrize(
    "body, location",
    [
        pytest.param({}, "body.lora_name", id="empty-object"),
        pytest.param({"lora_name": "x"}, "body.lora_path", id="no-path"),
        pytest.param({"lora_path": "/x"}, "body.lora_name", id="no-name"),
        pytest.param({"lora_name": None, "lora_path": "/x"}, "body.lora_name", id="null-name"),
        pytest.param({"lora_name": 5, "lora_path": "/x"}, "body.lora_name", id="number-as-name"),
        pytest.param([], "body", id="list"),
    ],
)
async def test_wrong_fields_are_a_bad_request(client: Client, body: Any, location: str) -> None:
    status, kind, message, param = error(await client.post(LOAD, body))
    assert (status, kind, param) == (400, "Bad Request", location)
    assert message.startswith(("1 validation error:\n  {'type': ", "2 validation errors:\n  {'type': "))


@pytest.mark.parametrize(
    "content, media, message",
    [
        pytest.param(b"{junk", "application/json", "JSON decode error", id="bad-json"),
        pytest.param(b"", "application/json", "Field required", id="no-body"),
        pytest.param(b"{}", "text/plain", "Only 'application/json' is allowed", id="other-type"),
        pytest.param(b"{}", None, "Only 'application/json' is allowed", id="no-type"),
    ],
)
async def test_what_is_not_json_is_a_bad_request(client: Client, content: bytes, media: str | None, message: str) -> None:
    headers = {"content-type": media} if media else {}
    answer = await client.http.post(LOAD, content=content, headers=headers)
    status, kind, text, _ = error(answer)
    assert (status, kind) == (400, "Bad Request") and message in text


async def test_empty_name_or_path_is_an_invalid_input(client: Client) -> None:
    for body in ({"lora_name": "", "lora_path": "/x"}, {"lora_name": "x", "lora_path": ""}):
        message = "Both 'lora_name' and 'lora_path' must be provided."
        assert error(await client.post(LOAD, body)) == (400, "InvalidUserInput", message, None)


async def test_a_content_type_with_a_charset_and_unknown_fields_are_fine(client: Client, subject: Subject) -> None:
    body = json.dumps({"lora_name": new_name(), "lora_path": str(subject.adapter("abc")), "more": 1})
    headers = {"content-type": "application/json; charset=utf-8"}
    assert (await client.http.post(LOAD, content=body, headers=headers)).status_code == 200


async def test_of_twenty_equal_loads_at_once_exactly_one_is_answered_200(client: Client, subject: Subject) -> None:
    name, folder = new_name(), subject.adapter("abc")
    answers = await asyncio.gather(*(client.load(name, folder) for _ in range(20)))
    assert Counter(answer.status_code for answer in answers) == {200: 1, 400: 19}
    assert all("has already been loaded" in answer.text for answer in answers if answer.status_code == 400)


async def test_unloading_deletes_the_name(client: Client, subject: Subject) -> None:
    name = await client.loaded(subject.adapter("abc"))
    answer = await client.unload(name)
    assert (answer.status_code, answer.text) == (200, f"Success: LoRA adapter '{name}' removed successfully.")
    assert "content-type" not in answer.headers
    message = f"The model `{name}` does not exist. Valid aliases: tiny, alias."
    assert error(await client.complete(name)) == (404, "NotFoundError", message, "model")
    assert name not in [entry["id"] for entry in await client.models()]


@pytest.mark.parametrize("name", ["never-there", "tiny"])
async def test_unloading_what_is_not_an_adapter_is_not_found(client: Client, name: str) -> None:
    message = f"The lora adapter '{name}' cannot be found."
    assert error(await client.unload(name)) == (404, "NotFoundError", message, None)


async def test_unloading_nothing_is_an_invalid_input(client: Client) -> None:
    message = "'lora_name' needs to be provided to unload a LoRA adapter."
    assert error(await client.unload("")) == (400, "InvalidUserInput", message, None)
    assert error(await client.post(UNLOAD, {}))[3] == "body.lora_name"


@pytest.mark.parametrize(
    "name",
    [
        "team/x",
        "../../etc",
        "has space",
        "v1.2",
        "ünï ☃",
        "new\nline",
        'quote"q',
        "Tiny",
        "a:b",
        "%2e%2e",
        "n@0123456789ab",
    ],
)
async def test_any_text_is_a_name(client: Client, subject: Subject, name: str) -> None:
    await client.loaded(subject.adapter("abc"), name)
    answer = await client.complete(name, tokens=4)
    assert (answer.json()["model"], answer.json()["choices"][0]["text"]) == (name, "abca")
    assert (await client.unload(name)).status_code == 200


async def test_the_list_has_base_models_first_then_adapters_in_load_order(client: Client, subject: Subject) -> None:
    folders = [subject.adapter("abc") for _ in range(3)]
    names = [await client.loaded(folder, f"{prefix}-{new_name()}") for prefix, folder in zip("zma", folders, strict=True)]
    entries = await client.models()
    assert [entry["id"] for entry in entries[:2]] == ["tiny", "alias"]
    assert [entry["id"] for entry in entries[-3:]] == names
    first, last = entries[0], entries[-1]
    assert first.keys() == last.keys() == {
        "id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission",
    }  # fmt: skip
    assert (first["root"], first["parent"], first["max_model_len"]) == (str(subject.model), None, 512)
    assert (last["root"], last["parent"], last["max_model_len"]) == (str(folders[-1]), "tiny", None)
    assert (last["object"], last["owned_by"]) == ("model", "vllm")
    assert last["permission"][0]["id"].startswith("modelperm-")


async def test_the_root_is_the_path_as_it_was_given(client: Client, subject: Subject) -> None:
    folder = subject.adapter("abc")
    given = f"{folder.parent}/../{folder.parent.name}/{folder.name}/"
    name = new_name()
    assert (await client.load(name, given)).status_code == 200
    assert next(entry["root"] for entry in await client.models() if entry["id"] == name) == given


async def test_routes_and_methods_that_do_not_exist_have_fastapis_shape(client: Client) -> None:
    for path in ("/v1/models/tiny", "/nosuch", "/v1/nosuch", "/is_sleeping"):
        answer = await client.http.get(path)
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"}), path
    answer = await client.http.get(LOAD)
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})


async def test_health_ping_and_version(client: Client) -> None:
    for path in ("/health", "/ping"):
        answer = await client.http.get(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert (await client.http.get("/version")).json() == {"version": "0.32.0"}
