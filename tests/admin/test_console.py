"""The console's page as it is sent: its policy, and that the page keeps to it."""

import base64
import hashlib
import re

import pytest

from gateway.admin.console import PAGE, security_headers

TEXT = PAGE.read_text(encoding="utf-8")
POLICY = security_headers(PAGE.read_bytes())["content-security-policy"]


def test_the_policy_allows_this_script_and_this_style_and_nothing_else() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert (rules["base-uri"], rules["form-action"], rules["frame-ancestors"]) == ("'none'", "'none'", "'none'")
    assert "unsafe" not in POLICY
    assert "*" not in POLICY
    for tag in ("script", "style"):
        (block,) = re.findall(rf"<{tag}>(.*?)</{tag}>", TEXT, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"


def test_another_script_has_another_hash() -> None:
    assert security_headers(b"<script>1</script>") != security_headers(b"<script>2</script>")


def test_no_page_may_frame_it_and_no_browser_guesses_its_type() -> None:
    headers = security_headers(PAGE.read_bytes())
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "forbidden",
    ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage", " onclick=", " style="],
)
def test_the_page_never_makes_markup_of_text_nor_keeps_a_key_beyond_the_tab(forbidden: str) -> None:
    assert forbidden not in TEXT


def test_the_page_needs_nothing_from_elsewhere() -> None:
    addresses = set(re.findall(r"https?://[^\s'\"]+", TEXT))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a language, in the icon
    assert re.findall(r"\bsrc=|@import|url\(", TEXT) == []
