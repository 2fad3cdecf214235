"""A fleet whose sessions have hostile names, and a browser that notes what it must not do."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, sync_playwright

from tests.integration.proxy.test_usage import Regions, used_regions
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, chat, events

CHROMIUM = "/usr/bin/chromium"
IMAGES = os.environ.get("WARMROUTE_IMAGES")
HOSTILE = '<img src=x onerror="window.hit=1">\'"><script>window.hit=2</script>'
VIEWS = ("money", "sessions", "ladder", "engines", "decisions", "keys")
Scheme = Literal["dark", "light"]


class Visit:
    """A tab that has the page open, and all that it asked for and complained about."""

    def __init__(self, context: BrowserContext, proxy: ProxyProcess) -> None:
        self.page: Page = context.new_page()
        self.url = str(proxy.line["admin_url"])
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self._note(said.type, said.text))
        self.page.set_default_timeout(seconds(15, 3.0) * 1000)
        self.page.goto(f"{self.url}/page")

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.complaints.append(text)

    def sign_in(self, key: str) -> "Visit":
        self.page.fill("#key", key)
        self.page.press("#key", "Enter")
        self.settled("money")
        return self

    def go(self, view: str) -> "Visit":
        self.page.click(f"nav a[data-view={view}]")
        self.settled(view)
        return self

    def settled(self, view: str) -> None:
        self.page.wait_for_selector(f"#view[data-view={view}][aria-busy=false]")

    def open_session(self) -> None:
        """The most expensive one."""
        self.page.locator("a.session").first.click()
        self.page.wait_for_selector("#session")

    def open_receipt(self) -> None:
        self.page.locator(".turn").first.click()
        self.page.wait_for_selector("dialog[open] summary")

    def tile(self, name: str) -> list[str]:
        """The value of a tile, and what is said of it."""
        return str(self.page.inner_text(f".tile:has(dt:text-is('{name}'))")).split("\n")[1:]

    def text(self, selector: str = "body") -> str:
        return str(self.page.inner_text(selector))

    def picture(self, name: str) -> None:
        """A screenshot for the docs, where those are asked for."""
        if IMAGES:
            Path(IMAGES).mkdir(exist_ok=True)
            self.page.screenshot(path=Path(IMAGES) / f"{name}.png")


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    with used_regions(tmp_path_factory.mktemp("page"), tables=LIMITS, extra="counts_alone = true") as made:
        for turns in (1, 2, 3, 4):
            made.turn(made.east, "named", turns, headers=HEADS)
        work(made)
        refused_and_streamed(made)
        yield made


def work(fleet: Regions) -> None:
    """A session of ten turns as agents have them, whose sixth changes its system prompt."""
    head = {"x-session-affinity": WORK, "x-warmroute-session-name": WORK, "x-warmroute-agent": "build"}
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a careful engineer. " * 300}]
    with fleet.east.client() as client:
        for number in range(10):
            messages.append({"role": "user", "content": f"Result {number}: " + f"line {number} is fine. " * 150})
            if number == 5:
                messages[0] = {"role": "system", "content": "It is Tuesday. " + messages[0]["content"]}
            body = {"model": "kimi-k2.5", "messages": messages, "max_tokens": 40}
            text, usage = streamed(client, body, head)
            messages.append({"role": "assistant", "content": text})
            fleet.usages.append(usage | {"tenant": 0, "key": WORK, "model": "kimi-k2.5"})


def streamed(client: httpx.Client, body: dict[str, Any], head: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """The text of a stream, and its usage."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    answer = client.post("/v1/chat/completions", json=body, headers=head).raise_for_status()
    found = events(answer.text)
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in found if event["choices"])
    return text, next(event["usage"] for event in found if event.get("usage"))


def refused_and_streamed(fleet: Regions) -> None:
    """The second tenant gets a stream, and is refused once."""
    body = chat("streamed") | {"model": "kimi-k2.5"}
    with fleet.east.client(1) as client:
        _, usage = streamed(client, body, {})
        fleet.usages.append(usage | {"tenant": 1, "key": "streamed", "model": "kimi-k2.5"})
        assert client.post("/v1/chat/completions", json=body).status_code == 429


LIMITS = """
[[budget]]
name = "of-both"
tenants = ["first", "second"]
requests_per_minute = 1000
tokens_per_minute = 1000000
usd_per_day = "5"

[[budget]]
name = "of-second"
tenants = ["second"]
requests_per_minute = 1
"""
WORK = "fix the tests"
HEADS = {"x-warmroute-session-name": HOSTILE[:64], "x-warmroute-agent": HOSTILE[:64]}


@pytest.fixture(scope="session")
def playwright_() -> Iterator[Playwright]:
    with sync_playwright() as made:
        yield made


@pytest.fixture(scope="session")
def browser(playwright_: Playwright) -> Iterator[Browser]:
    made = playwright_.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield made
    made.close()


class Opener:
    """Opens the page in a fresh profile, as wide and as dark as it is asked to."""

    def __init__(self, browser: Browser, fleet: Regions) -> None:
        self._browser = browser
        self._fleet = fleet
        self._contexts: list[BrowserContext] = []

    def __call__(self, width: int = 1280, scheme: Scheme = "light", **more: Any) -> Visit:
        context = self._browser.new_context(
            viewport={"width": width, "height": 844 if width < 500 else 800}, color_scheme=scheme, **more
        )
        self._contexts.append(context)
        return Visit(context, self._fleet.east)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def visit(browser: Browser, fleet: Regions) -> Iterator[Opener]:
    made = Opener(browser, fleet)
    yield made
    made.close()
