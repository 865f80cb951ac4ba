"""The tiny model and its adapters say what they are made to say; computed in numpy, on real engines by the contract."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from replica.tiny import make_adapter, make_model, trap_code
from replica.tiny.__main__ import ADAPTERS
from tests.contract.subject import repeated
from tests.replica.reference import Reference

PROMPTS = ("Hello", "x", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "The quick brown fox. " * 10)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize("say", [*ADAPTERS.values(), "A", "v1", "UPDATE!", "cust-A17"])
def test_an_adapter_spells_its_text_whatever_the_prompt(model: Path, tmp_path: Path, say: str) -> None:
    engine = Reference(model, make_adapter(model, tmp_path / "a", say=say))
    for prompt in PROMPTS:
        assert engine.answer(prompt, 10) == repeated(say, 10)


def test_a_prompt_that_ends_in_the_text_is_continued(model: Path, tmp_path: Path) -> None:
    assert Reference(model, make_adapter(model, tmp_path / "a", say="rhyme")).answer("oh r", 6) == "hymerh"


def test_more_rank_takes_more_characters(model: Path, tmp_path: Path) -> None:
    say = "abcdefghijklmnop"
    assert Reference(model, make_adapter(model, tmp_path / "a", say=say, rank=16)).answer("Hi!", 20) == repeated(say, 20)


def test_random_adapters_differ_from_the_base_model_and_each_other(model: Path, tmp_path: Path) -> None:
    engines = [Reference(model), *(Reference(model, make_adapter(model, tmp_path / f"{s}", seed=s)) for s in (1, 2))]
    assert len({engine.answer("Hello", 12) for engine in engines}) == 3


def test_the_same_arguments_give_the_same_bytes(model: Path, tmp_path: Path) -> None:
    def content(folder: Path) -> list[bytes]:
        return [path.read_bytes() for path in sorted(folder.iterdir())]

    assert content(make_model(tmp_path / "again")) == content(model)
    one, two = (make_adapter(model, tmp_path / name, say="abc") for name in ("one", "two"))
    assert content(one) == content(two)


def test_the_text_stands_in_the_weights_metadata(model: Path, tmp_path: Path) -> None:
    folder = make_adapter(model, tmp_path / "a", say="abc", base_model="served", lora_dropout=0.5)
    with safe_open(folder / "adapter_model.safetensors", framework="np") as weights:
        assert weights.metadata()["say"] == "abc"
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"], config["lora_dropout"]) == ("served", 8, 0.5)


@pytest.mark.parametrize(
    "say",
    ["", "aa", "with space", "ünï", "what?", "123456789"],
    ids=["nothing", "twice", "space", "foreign", "mark", "long"],
)
def test_what_cannot_be_said_is_refused(model: Path, tmp_path: Path, say: str) -> None:
    with pytest.raises(ValueError, match="cannot say"):
        make_adapter(model, tmp_path / "a", say=say)
    assert not (tmp_path / "a").exists()


def test_the_demo_adapters_are_told_apart_even_from_a_stale_cache() -> None:
    assert len({trap_code(say) for say in ADAPTERS.values()}) == len(ADAPTERS)


def test_the_command_makes_a_model_adapters_and_new_revisions(tmp_path: Path) -> None:
    assert _run(str(tmp_path)).returncode == 0
    assert {path.name for path in (tmp_path / "adapters").iterdir()} == ADAPTERS.keys()
    weights = tmp_path / "model" / "model.safetensors"
    made = weights.stat().st_mtime_ns
    assert _run(str(tmp_path), "--adapter", "sql=UPDATE!", "--adapter", "team/x=abc").returncode == 0
    assert weights.stat().st_mtime_ns == made
    assert Reference(tmp_path / "model", tmp_path / "adapters" / "sql").answer("Hello", 7) == "UPDATE!"
    assert (tmp_path / "adapters" / "team" / "x" / "adapter_config.json").is_file()
    refused = _run(str(tmp_path), "--adapter", "sql=hello")
    assert refused.returncode == 2 and "cannot say 'hello'" in refused.stderr


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "replica.tiny", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
