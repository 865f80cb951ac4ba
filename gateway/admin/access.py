"""Who may use `/admin`: the key when one is set; without one, actions only on a gateway that only this machine reaches.

A browser carries any page's requests to this machine, so an action must also come from the gateway's own page: the
browser says where from (`Origin`, `Sec-Fetch-Site`), and without a key the name in `Host` must be one of this machine,
because a foreign name can be made to point here.
"""

import hmac
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request

from gateway.core.errors import AdminForbidden, InvalidApiKey


@dataclass(frozen=True, slots=True)
class Access:
    """`key` None: no key is set. `loopback_only`: the gateway listens on this machine's own addresses alone."""

    key: str | None
    loopback_only: bool

    def check(self, request: Request, *, action: bool) -> None:
        """Raises what keeps the caller out."""
        if self.key is not None:
            given = _given_key(request)
            if not given or not hmac.compare_digest(given, self.key.encode()):
                raise InvalidApiKey("This needs the admin key: Authorization: Bearer KEY.")
        elif action and not self.loopback_only:
            raise AdminForbidden("Actions are closed: the gateway listens on more than loopback and has no --admin-api-key.")
        elif action and not _is_local(request.headers.get("host", "")):
            raise AdminForbidden("Actions are closed under this host name: use localhost, or set --admin-api-key.")
        if action and _is_foreign(request):
            raise AdminForbidden("Actions are closed to pages of another origin.")

    def __repr__(self) -> str:
        return f"<Access {'with a key' if self.key else 'without a key'}>"


def _given_key(request: Request) -> bytes:
    """Headers are bytes: a key that is not ASCII comes as its UTF-8."""
    scheme, _, rest = request.headers.get("authorization", "").partition(" ")
    given = rest.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    return given.encode("latin-1")


def _is_foreign(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")  # no script can set it
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
