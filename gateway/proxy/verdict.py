"""What a replica's error says about the replica itself. Pure: status and body in, a verdict out.

Answers with these statuses are small, so they are held back until they are whole; all others stream through at once.
The texts are vLLM 0.32's. Its `/v1/messages` tells an unknown model without a `param`.
"""

from enum import Enum, auto

import msgspec

JUDGED = frozenset((401, 403, 404, 500))
LIMIT = 65536  # bytes of such an answer that are held back; a longer one is passed on
_ENGINE_DEAD = b"EngineCore encountered an issue"
_MISSING_FILES = (b"No such file", b"No adapter found", b"adapter_config.json", b"adapter_model.")


class Verdict(Enum):
    PASS = auto()  # the client's to read
    DRAINING = auto()  # it is shutting down and surely did not run the request
    FORGOTTEN = auto()  # it does not have the model that it was believed to hold
    CREDENTIALS = auto()  # it refuses the gateway's key
    DYING = auto()  # the client's to read, and its engine has just died
    MISSING_FILES = auto()  # the client's to read, and the adapter's files are gone


class _Error(msgspec.Struct):
    message: str = ""
    type: str = ""
    param: str | None = None


class _Envelope(msgspec.Struct):
    error: _Error


_decode = msgspec.json.Decoder(_Envelope).decode


def judge(status: int, body: bytes, served_name: str) -> Verdict:
    if status in (401, 403):
        return Verdict.CREDENTIALS
    if status == 500:
        if b"cannot schedule new futures after shutdown" in body:
            return Verdict.DRAINING
        if _ENGINE_DEAD in body:
            return Verdict.DYING
        return Verdict.MISSING_FILES if any(text in body for text in _MISSING_FILES) else Verdict.PASS
    if status == 404 and _names_model(body, served_name):
        return Verdict.FORGOTTEN
    return Verdict.PASS


def _names_model(body: bytes, served_name: str) -> bool:
    try:
        error = _decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if error.param == "model":
        return True
    return error.type == "NotFoundError" and error.message.startswith(f"The model `{served_name}` does not exist")
