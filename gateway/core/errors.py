"""Every error that a client can get: status, type, code, and after how long a new try makes sense.

One tree, so that the type says what happened and both adapters of the data path tell it alike. Messages name the
adapter, the replica and the remedy; they never hold a key or a path outside the adapter directory.
"""

import msgspec

from gateway.core.adapters import Revision
from gateway.core.strikes import Quarantine


class GatewayError(Exception):
    """An answer that the gateway gives itself. `retry_after` is in seconds."""

    status = 500
    type = "internal_error"
    code = "internal_error"
    retry_after: int | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """The OpenAI error envelope."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def event(self, *, named: bool = False) -> bytes:
        """The same as one server-sent event; `named` for the streams whose events carry names (`event: error`)."""
        return (b"event: error\n" if named else b"") + b"data: " + self.body() + b"\n\n"


class InvalidRequest(GatewayError):
    status, type, code = 400, "invalid_request_error", "invalid_request"


class AdapterRejected(GatewayError):
    """The adapter's files are invalid, or the replicas refuse them."""

    status, type, code = 400, "invalid_request_error", "adapter_rejected"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"Failed to load LoRA adapter '{name}': {reason}", param="model")


class AdapterQuarantined(GatewayError):
    """The revision was running, or being loaded, when two replicas died."""

    status, type, code = 400, "invalid_request_error", "adapter_quarantined"

    def __init__(self, revision: Revision, quarantine: Quarantine) -> None:
        remedy = "It is tried again after a while, when its files change, or when an operator says retry."
        why = f"the revision {revision.digest} is quarantined: {quarantine.reason}"
        super().__init__(f"Failed to load LoRA adapter '{revision.name}': {why}. {remedy}", param="model")
        self.revision, self.trial_at = revision, quarantine.trial_at


class InvalidApiKey(GatewayError):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class AdminForbidden(GatewayError):
    status, type, code = 403, "permission_error", "admin_forbidden"


class ModelNotAllowed(GatewayError):
    status, type, code = 403, "permission_error", "model_not_allowed"


class ModelNotFound(GatewayError):
    status, type, code = 404, "NotFoundError", "model_not_found"

    def __init__(self, name: str, detail: str = "") -> None:
        shown = name if len(name) <= 200 else name[:200] + "..."
        super().__init__(f"The model '{shown}' does not exist.{' ' + detail if detail else ''}", param="model")


class NotFound(GatewayError):
    status, type, code = 404, "NotFoundError", "not_found"


class MethodNotAllowed(GatewayError):
    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class PinRefused(GatewayError):
    """A pin that cannot be kept."""

    status, type, code = 409, "invalid_request_error", "pin_refused"


class BodyTooLarge(GatewayError):
    status, type, code = 413, "invalid_request_error", "body_too_large"


class UnsupportedEncoding(GatewayError):
    status, type, code = 415, "invalid_request_error", "unsupported_encoding"


class TooManyWaiting(GatewayError):
    status, type, code, retry_after = 429, "rate_limit_error", "too_many_waiting", 1


class ReplicaUnreachable(GatewayError):
    """No connection could be made: the request was surely not sent."""

    status, type, code = 502, "upstream_error", "replica_unreachable"


class ReplicaFailed(GatewayError):
    """The replica broke off after the request was sent."""

    status, type, code = 502, "upstream_error", "replica_failed"


class ReplicaCredentials(GatewayError):
    status, type, code = 502, "upstream_error", "replica_credentials"


class ReplicaCannotSeeAdapter(GatewayError):
    status, type, code = 502, "upstream_error", "replica_cannot_see_adapter"


class AdapterIncomplete(GatewayError):
    status, type, code, retry_after = 503, "service_unavailable", "adapter_incomplete", 5


class AdapterLost(AdapterIncomplete):
    """A moment's state, not a verdict: the files are looked at until they are whole, other ones, or gone."""

    def __init__(self, adapter: str, reason: str) -> None:
        super().__init__(f"The LoRA adapter '{adapter}' waits for its files to be found whole: {reason}", param="model")


class AdapterLoading(GatewayError):
    status, type, code, retry_after = 503, "service_unavailable", "adapter_loading", 1


class ReplicasBusy(GatewayError):
    status, type, code, retry_after = 503, "service_unavailable", "replicas_busy", 1


class NoReplica(GatewayError):
    status, type, code, retry_after = 503, "service_unavailable", "no_replica", 5


class ReplicaMisconfigured(GatewayError):
    status, type, code, retry_after = 503, "service_unavailable", "replica_misconfigured", 5


class ShuttingDown(GatewayError):
    status, type, code, retry_after = 503, "service_unavailable", "shutting_down", 1


class ReplicaTimeout(GatewayError):
    status, type, code = 504, "upstream_error", "replica_timeout"
