"""Where a replica is: a URL as operators write it, made into one form, so that the same server is the same replica."""

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """`id` is `host:port`, `url` has no trailing slash."""

    id: str
    url: str

    @classmethod
    def parse(cls, text: str) -> "Address":
        """From `http://host:8000`, `https://host/prefix` or bare `host:8000`; raises ValueError with what is wrong."""
        text = text.strip()
        parts = urlsplit(text if "://" in text else f"http://{text}")
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"the scheme must be http or https, not '{parts.scheme}'")
        if parts.username is not None or parts.password is not None:
            raise ValueError("credentials do not belong into the URL: use --replica-api-key")
        if parts.query or parts.fragment:
            raise ValueError("a replica's URL has no query and no fragment")
        if not parts.hostname or any(c.isspace() or not c.isprintable() for c in text):
            raise ValueError("there is no host name")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise ValueError("the port must be a number from 1 to 65535") from error
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(f"{host}:{port}", f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}")
