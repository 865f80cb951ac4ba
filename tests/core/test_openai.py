"""The envelope of a request, read as vLLM reads it."""

import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.openai import read_model


@pytest.mark.parametrize(
    ("body", "model"),
    [
        pytest.param(b'{"model":"a"}', "a", id="plain"),
        pytest.param(b' {"x":{"model":"no"},"model":"team/alpha"} ', "team/alpha", id="top-level-only"),
        pytest.param(b'{"model":"a","model":"b"}', "b", id="last-wins"),
        pytest.param(b'{"model":1,"model":"b"}', "b", id="last-wins-over-a-number"),
        pytest.param(b'{"mod\\u0065l":"b"}', "b", id="escaped-key"),
        pytest.param('{"model":"ünï"}'.encode(), "ünï", id="non-ascii"),
        pytest.param(b'{"model":"a\\u0000"}', "a\0", id="nul"),
        pytest.param(b"{}", None, id="missing"),
        pytest.param(b'{"model":null}', None, id="null"),
        pytest.param(b'{"model":""}', None, id="empty"),
        pytest.param(b'{"model":"a","model":null}', None, id="null-wins"),
    ],
)
def test_the_model_that_a_body_names(body: bytes, model: str | None) -> None:
    assert read_model(body) == model


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"", "valid JSON", id="empty"),
        pytest.param(b"{", "valid JSON", id="cut"),
        pytest.param(b'{"model":"a"} x', "valid JSON", id="trailing"),
        pytest.param(b'{"a":NaN}', "valid JSON", id="nan"),
        pytest.param(b"\xef\xbb\xbf{}", "valid JSON", id="bom"),
        pytest.param(b'{"model":"\xff"}', "valid JSON", id="not-utf8"),
        pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deeply", id="deep"),
        pytest.param(b'{"model":1,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deeply|string", id="number-and-deep"),
        pytest.param(b"[]", "JSON object", id="array"),
        pytest.param(b'"x"', "JSON object", id="string"),
        pytest.param(b'{"model":5}', "must be a string", id="number"),
        pytest.param(b'{"model":["a"]}', "must be a string", id="list"),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read_model(body)
