"""The envelope of a request: the one field of its body that the gateway needs, `model`.

Read as vLLM reads it: the last of several `model` keys counts, escaped keys are keys, and missing, null or empty all mean
the base model. Everything else in the body is only checked for being JSON and is never built.
"""

import msgspec

from gateway.core.errors import InvalidRequest


class _Envelope(msgspec.Struct):
    model: str | None = None


class _Loose(msgspec.Struct):
    """For bodies whose first `model` is no string: another may follow."""

    model: msgspec.Raw = msgspec.Raw(b"null")


class _Named(msgspec.Struct):
    user: object = None


_named = msgspec.json.Decoder(_Named).decode
_strict = msgspec.json.Decoder(_Envelope).decode
_loose = msgspec.json.Decoder(_Loose).decode
_name = msgspec.json.Decoder(str | None).decode


def read_model(body: bytes) -> str | None:
    """The model that a JSON body names; None when absent, null or empty. Raises InvalidRequest."""
    try:
        return _strict(body).model or None
    except msgspec.ValidationError:
        return _read_loosely(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _not_json(error) from None


def read_user(body: bytes) -> str:
    """The `user` of a JSON body whose model was read; empty when it has none."""
    try:
        user = _named(body).user
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ""
    return user if isinstance(user, str) else ""


def _read_loosely(body: bytes) -> str | None:
    try:
        raw = _loose(body).model
    except msgspec.ValidationError:
        raise InvalidRequest("The body must be a JSON object.") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _not_json(error) from None
    try:
        return _name(raw) or None
    except (msgspec.DecodeError, UnicodeDecodeError):  # ValidationError is one of the former
        raise InvalidRequest("'model' must be a string.", param="model") from None


def _not_json(error: Exception) -> InvalidRequest:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return InvalidRequest(f"The body is not valid JSON: {reason}")
