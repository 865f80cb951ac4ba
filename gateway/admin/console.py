"""The console: one page for people, and the headers that keep it from doing anything but show and ask this gateway.

The page carries no data, so it needs no key: everything in it comes from `/admin`, which does. Its script and its style
are inline and named by their hashes in the policy, so nothing that got into the page by other ways would run.
"""

import base64
import hashlib
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PAGE = Path(__file__).with_name("console.html")


def console_route() -> Route:
    """GET /console, with the page as it is on disk now."""
    page = PAGE.read_bytes()
    headers = security_headers(page)

    async def console(request: Request) -> Response:
        return Response(page, headers=headers, media_type="text/html")

    return Route("/console", console)


def security_headers(page: bytes) -> dict[str, str]:
    """What a browser must keep to on this page."""
    policy = {
        "default-src": "'none'",
        "script-src": _hashes(page, b"script"),
        "style-src": _hashes(page, b"style"),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "cache-control": "no-cache",
    }


def _hashes(page: bytes, tag: bytes) -> str:
    blocks = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), page, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(block).digest()).decode() for block in blocks)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
