"""Real shapes of adapter_config.json, by generation of PEFT, and everything else that carries that name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.peft_config import parse_config
from gateway.control.verdicts import Invalid
from tests.adapters import config

GEN_A = {"bias", "enable_lora", "fan_in_fan_out", "inference_mode", "init_lora_weights", "lora_dropout", "merge_weights"}
GEN_A |= {"modules_to_save"}
GEN_B = (GEN_A - {"enable_lora", "merge_weights"}) | {"layers_pattern", "layers_to_transform", "revision", "auto_mapping"}
GEN_C = GEN_B | {
    "alpha_pattern",
    "rank_pattern",
    "loftq_config",
    "megatron_config",
    "megatron_core",
    "use_rslora",
    "use_dora",
}
GEN_E = GEN_C | {"layer_replication", "eva_config", "exclude_modules", "lora_bias"}
GEN_G = GEN_E | {"corda_config", "trainable_token_indices", "qalora_group_size", "use_qalora", "target_parameters"}
GEN_H = GEN_G | {"alora_invocation_tokens", "arrow_config", "ensure_weight_tying", "peft_version"}
GEN_J = GEN_H | {"lora_ga_config", "use_bdlora", "kasa_config", "monteclora_config", "velora_config"}
GENERATIONS = {"peft-0.3": GEN_A, "peft-0.5": GEN_B, "peft-0.9": GEN_C, "peft-0.14": GEN_E}
GENERATIONS |= {"peft-0.17": GEN_G, "peft-0.18": GEN_H, "peft-0.21": GEN_J}
USUAL = {"bias": "none", "init_lora_weights": True, "lora_dropout": 0.0, "rank_pattern": {}, "alpha_pattern": {}}
USUAL |= {"megatron_core": "megatron.core", "loftq_config": {}, "peft_version": "0.18.2.dev0@abc", "inference_mode": True}


def text(**overrides: Any) -> bytes:
    return json.dumps(config(**overrides)).encode()


@pytest.mark.parametrize("keys", GENERATIONS.values(), ids=GENERATIONS.keys())
def test_unknown_keys_every_generation_of_peft_is_accepted_without_a_warning(keys: set[str]) -> None:
    found = parse_config(text(**{key: USUAL.get(key) for key in keys}))
    assert (found.rank, found.warnings) == (8, ())


def test_unknown_keys_that_no_peft_has_written_yet_do_not_matter() -> None:
    strange = {"peft_version": "0.99.0", "brand_new_config": {"a": [1, {"b": None}]}, "use_something": True}
    assert parse_config(text(**strange, lora_ga_config=None, use_bdlora=None)).warnings == ()


FREE = {
    "null-base": {"base_model_name_or_path": None},
    "no-task": {"task_type": None},
    "auto-mapping": {"auto_mapping": {"base_model_class": "SomeNet", "vendor_fixed": True}},
    "alpha-float": {"lora_alpha": 0.5},
    "alpha-huge": {"lora_alpha": 100_000},
    "alpha-beyond-floats": {"lora_alpha": 10**400},
    "dropout-integer": {"lora_dropout": 0},
    "r-large": {"r": 1000},
    "one-letter": {"target_modules": ["q", "k", "v", "o"]},
    "dotted": {"target_modules": ["attn.proj", "0.proj_in", "to_out.0"]},
    "four-hundred": {"target_modules": [f"m{i}" for i in range(400)]},
    "layers": {"layers_to_transform": 7, "layers_pattern": "layers", "init_lora_weights": "pissa"},
    "rank-pattern-odd": {"rank_pattern": ["no", "mapping"], "alpha_pattern": 3},
}


@pytest.mark.parametrize("overrides", FREE.values(), ids=FREE.keys())
def test_bad_numbers_and_target_odd_unusual_but_right_values_are_accepted(overrides: dict[str, Any]) -> None:
    assert parse_config(text(**overrides)).warnings == ()


@pytest.mark.parametrize(
    "target",
    ["all-linear", r"(?:.*(?:text|language).*\.(?:q_proj|v_proj))|(?:\bmodel\.layers\.\d+(?!.*\.experts)\..*o_proj)", "("],
    ids=["all-linear", "regex", "broken-regex"],
)
def test_target_string_is_accepted_as_it_is_and_never_compiled(target: str) -> None:
    assert parse_config(text(target_modules=target)).rank == 8


def test_target_odd_no_modules_but_parameters_is_accepted_with_a_warning() -> None:
    nothing: list[list[str] | None] = [None, []]
    for empty in nothing:
        (warning,) = parse_config(text(target_modules=empty, target_parameters=["experts.gate_up_proj"])).warnings
        assert "target_parameters" in warning


WARNED = {
    "modules_to_save": ["embed_tokens", "lm_head"],
    "use_dora": True,
    "bias": "lora_only",
    "lora_bias": True,
    "target_parameters": ["experts.down_proj"],
    "trainable_token_indices": {"embed_tokens": [7, 8]},
}


@pytest.mark.parametrize(("key", "value"), WARNED.items(), ids=WARNED.keys())
def test_modules_to_save_and_the_like_are_warnings_that_name_the_key(key: str, value: object) -> None:
    (warning,) = parse_config(text(**{key: value})).warnings
    assert key in warning


def test_the_rank_is_the_largest_of_r_and_the_rank_pattern() -> None:
    found = parse_config(text(rank_pattern={r"^layers\.0\..*q_proj$": 32, "k_proj": 4, "v_proj": True, "o_proj": "64"}))
    assert (found.r, found.rank, found.ranks) == (8, 32, frozenset({8, 32, 4}))


NOT_JSON_OBJECTS = {
    "empty": (b"", "is empty", "config"),
    "blank": (b" \n", "is empty", "config"),
    "lfs-pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
        "Git LFS pointer, content not fetched",
        "lfs_pointer",
    ),
    "bom": (b"\xef\xbb\xbf" + text(), "UTF-8 BOM", "config"),
    "array": (b"[1]", "not an array", "config"),
    "scalar": (b'"LORA"', "not the scalar 'LORA'", "config"),
    "null": (b"null", "not the scalar None", "config"),
    "cut": (text()[:-9], "not valid JSON (line 1", "config"),
    "html": (b"<html>404</html>", "not valid JSON", "config"),
    "utf-16": (text().decode().encode("utf-16"), "not UTF-8", "config"),
    "nested": (b"[" * 1_000_000, "nested too deeply", "config"),
    "nested-object": (b'{"a":' * 200_000, "nested too deeply", "config"),
    "long-number": (b'{"r": ' + b"1" * 10_000 + b"}", "not valid JSON", "config"),
    "five-megabytes": (b'{"a": "' + b"x" * 5_000_000 + b'"}', "larger than 4 MiB", "config"),
}


@pytest.mark.parametrize(("data", "reason", "code"), NOT_JSON_OBJECTS.values(), ids=NOT_JSON_OBJECTS.keys())
def test_lfs_pointer_and_whatever_is_no_json_object_is_invalid_with_the_exact_reason(
    data: bytes, reason: str, code: str
) -> None:
    with pytest.raises(Invalid) as refused:
        parse_config(data)
    assert (reason in refused.value.reason, refused.value.code) == (True, code), refused.value.reason


NOT_LORA = {
    "prompt-tuning": ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 20}, "peft_type PROMPT_TUNING is not LORA"),
    "lower-case": (config(peft_type="lora"), "peft_type lora is not LORA (write it in capitals)"),
    "list": (config(peft_type=["LORA"]), "peft_type 'list' is not LORA"),
    "mlx": ({"fine_tune_type": "lora", "lora_parameters": {"rank": 8}, "num_layers": 16}, "MLX training settings"),
    "mlx-stub": ({"num_layers": 16, "lora_parameters": {}}, "MLX training settings"),
    "controller": ({"adapter_type": "x", "architecture": "y"}, "peft_type is missing"),
    "stub": ({"base_model": "base-a"}, "peft_type is missing"),
    "object": ({}, "peft_type is missing"),
}


@pytest.mark.parametrize(("value", "reason"), NOT_LORA.values(), ids=NOT_LORA.keys())
def test_not_lora_says_what_it_is_instead(value: dict[str, Any], reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_config(json.dumps(value).encode())
    assert reason in refused.value.reason
    assert refused.value.code == "not_lora"


BAD_FIELDS = {
    "r-zero": ({"r": 0}, "r must be a positive whole number, not 0"),
    "r-negative": ({"r": -1}, "not -1"),
    "r-true": ({"r": True}, "not True"),
    "r-text": ({"r": "8"}, "not '8'"),
    "r-fraction": ({"r": 8.5}, "not 8.5"),
    "r-null": ({"r": None}, "not None"),
    "alpha-text": ({"lora_alpha": "16"}, "lora_alpha must be a number, not '16'"),
    "alpha-true": ({"lora_alpha": True}, "not True"),
    "alpha-nan": ({"lora_alpha": float("nan")}, "not nan"),
    "alpha-infinite": ({"lora_alpha": float("inf")}, "not inf"),
    "targets-null": ({"target_modules": None}, "target_modules missing"),
    "targets-empty": ({"target_modules": []}, "target_modules empty"),
    "targets-blank": ({"target_modules": ""}, "target_modules empty"),
    "targets-numbers": ({"target_modules": ["q_proj", 3]}, "must be a list of module names"),
    "targets-object": ({"target_modules": {"q_proj": 1}}, "must be a list of module names"),
}


@pytest.mark.parametrize(("overrides", "reason"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_bad_numbers_name_the_field_and_the_value(overrides: dict[str, Any], reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_config(text(**overrides))
    assert reason in refused.value.reason
    assert refused.value.code == "field"


@pytest.mark.parametrize("key", ["r", "lora_alpha", "target_modules"])
def test_bad_numbers_a_missing_field_is_called_missing(key: str) -> None:
    value = config()
    del value[key]
    with pytest.raises(Invalid, match=f"{key}.* missing"):
        parse_config(json.dumps(value).encode())


def test_layout_of_the_text_and_order_of_targets_make_no_other_content() -> None:
    one = config(target_modules=["v_proj", "q_proj"], modules_to_save=["b", "a"])
    other = {**dict(reversed(one.items())), "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["a", "b"]}
    pretty = json.dumps(other, indent=4).replace("\n", "\r\n").encode()
    assert parse_config(json.dumps(one).encode()).canonical == parse_config(pretty).canonical


def test_another_alpha_is_another_content() -> None:
    assert parse_config(text(lora_alpha=16)).canonical != parse_config(text(lora_alpha=32)).canonical


def test_a_base_name_full_of_control_characters_becomes_one_printable_line() -> None:
    found = parse_config(text(base_model="org/\x1b[31mbase\n-a\ud800" + "x" * 5000))
    assert found.base_model is not None
    assert found.base_model.startswith("org/[31mbase-a")
    assert found.base_model.isprintable()
    assert len(found.base_model.encode()) <= 1024


def test_a_base_name_that_is_no_string_is_none_with_a_warning() -> None:
    found = parse_config(text(base_model_name_or_path={"a": 1}))
    assert found.base_model is None
    assert found.warnings == ("base_model_name_or_path is not a string: ignored",)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
KEYS = ["peft_type", "r", "lora_alpha", "target_modules", "base_model_name_or_path", "rank_pattern", "bias", "use_dora"]
KEYS += ["modules_to_save", "target_parameters", "trainable_token_indices"]


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(), JSON_VALUES | st.sampled_from(["LORA", ["q"], 8])))
def test_any_object_is_either_a_config_or_invalid_with_one_printable_line(value: dict[str, Any]) -> None:
    try:
        found = parse_config(json.dumps(config() | value).encode())
    except Invalid as refused:
        assert refused.reason.isprintable()
        assert len(refused.reason) < 300
    else:
        assert found.rank >= 1
        assert all(warning.isprintable() for warning in found.warnings)


@given(st.binary(max_size=200))
def test_any_bytes_are_invalid_and_never_an_accident(data: bytes) -> None:
    with pytest.raises(Invalid):
        parse_config(data)
