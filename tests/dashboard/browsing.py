"""Chromium, and pages that must not complain."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMEOUT_MS = 30_000
GRAVE = {"serious", "critical"}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser with a user directory of its own; a machine without one is a failure."""
    assert CHROMIUM.exists(), f"tests of the dashboard drive {CHROMIUM}; `make chromium` installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Visitor:
    """Somebody with a browser window, and what went wrong in it."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, browser: Browser, url: str, *, token: str | None = None, **window: Any) -> "Visitor":
        context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce", **window)
        if token is not None:
            context.add_init_script(f"sessionStorage.setItem('hydraulis.token', {token!r})")
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        visitor = cls(page, url)
        page.on("console", visitor._note)
        page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
        page.on("request", lambda request: visitor.addresses.append(request.url))
        return visitor

    def _note(self, message: Any) -> None:
        # The browser itself reports every answer over 399 as an error; those are the service's to give.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def go(self, view: str = "") -> Page:
        """Open a view and wait until it is up to date."""
        self.page.goto(f"{self.url}/{view}")
        return self.settled()

    def settled(self) -> Page:
        self.page.wait_for_selector("#status[data-kind='live']")
        return self.page

    @property
    def main(self) -> Locator:
        return self.page.locator("#main")

    def text(self) -> str:
        return self.main.inner_text()

    @property
    def focused(self) -> str:
        """What has the focus: its name and text."""
        return str(
            self.page.evaluate("() => `${document.activeElement.tagName} ${document.activeElement.textContent}`")
        )

    def grave_faults(self) -> list[str]:
        """Name the serious and critical faults that axe-core finds."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{fault['id']}: {node['html'][:200]}"
            for fault in found
            if fault["impact"] in GRAVE
            for node in fault["nodes"]
        ]
