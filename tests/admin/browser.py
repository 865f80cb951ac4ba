"""A real browser under the test's hand: chromium through chromedriver, spoken to as W3C WebDriver over HTTP."""

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver are not installed")
_FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "ArrowDown": "\ue015", "End": "\ue010", "Tab": "\ue004"}


class WebDriverError(Exception):
    """What the driver answered instead of a value."""


@dataclass(frozen=True, slots=True)
class Page:
    """One browser with one tab."""

    client: httpx.AsyncClient
    session: str

    async def command(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        response = await self.client.request(method, f"{self.session}{path}", json=body if method == "POST" else None)
        value = response.json()["value"]
        if response.status_code != 200:
            raise WebDriverError(f"{value['error']}: {value['message'].splitlines()[0]}")
        return value

    async def open(self, url: str) -> None:
        await self.command("POST", "/url", {"url": url})

    async def run(self, script: str, *arguments: Any) -> Any:
        return await self.command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    async def texts(self, selector: str) -> list[str]:
        """What is visible of every element that matches."""
        return list(
            await self.run(
                "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility())"
                ".map(e => e.innerText.trim())",
                selector,
            )
        )

    async def click(self, selector: str) -> None:
        await self.command("POST", f"/element/{await self._find(selector)}/click", {})

    async def type(self, selector: str, text: str) -> None:
        await self.command("POST", f"/element/{await self._find(selector)}/value", {"text": text})

    async def press(self, *keys: str) -> None:
        """Keys for whatever has the focus."""
        strokes = [{"type": kind, "value": KEYS.get(k, k)} for k in keys for kind in ("keyDown", "keyUp")]
        await self.command("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    async def _find(self, selector: str) -> str:
        found = await self.command("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    async def wait(self, script: str, *arguments: Any, holds: Callable[[Any], bool] = bool, seconds: float = 10) -> Any:
        """What `script` returns, as soon as it `holds`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not holds(value := await self.run(script, *arguments)):
            if loop.time() > end:
                raise AssertionError(f"not within {seconds:g} s: {script}, last: {value!r}")
            await asyncio.sleep(0.05)
        return value

    async def wait_text(self, selector: str, part: str, seconds: float = 10) -> str:
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(await self.wait(script, selector, holds=lambda text: part in text, seconds=seconds))

    async def complaints(self) -> list[str]:
        """What the browser wrote to its console: breaches of the policy, errors of the script."""
        return [entry["message"] for entry in await self.command("POST", "/se/log", {"type": "browser"})]

    async def look(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Take this size, and these colours."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        await self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._devtools("Emulation.setEmulatedMedia", {"features": [scheme]})

    async def _devtools(self, name: str, parameters: dict[str, Any]) -> None:
        await self.command("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    async def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(await self.command("GET", "/screenshot")))


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Page]:
    """A headless browser that keeps its files in `profile`; it and its driver end with the block."""
    assert DRIVER is not None
    driver = await asyncio.create_subprocess_exec(
        DRIVER, "--port=0", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(20):
            port = await _port(driver)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            page = await _session(client, profile)
            try:
                yield page
            finally:
                await client.delete(page.session)
    finally:
        driver.terminate()
        await driver.wait()


async def _port(driver: asyncio.subprocess.Process) -> int:
    assert driver.stdout is not None
    async for line in driver.stdout:
        if b"started successfully on port" in line:
            return int(line.rsplit(b"port ", 1)[1].strip().rstrip(b"."))
    raise AssertionError("chromedriver did not start")


async def _session(client: httpx.AsyncClient, profile: Path) -> Page:
    options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
    wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    response = await client.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
    value = response.json()["value"]
    if response.status_code != 200:
        raise WebDriverError(value["message"])
    return Page(client, f"/session/{value['sessionId']}")
