"""The site of the docs in a browser: it fits a phone, requests nothing from other hosts, and its search finds pages."""

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from tests.machine import seconds

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    subprocess.run([ROOT / "scripts/docs", "build"], check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_pages_with_pictures_fit_a_phone_and_request_only_from_the_site(browser: Browser, site: str) -> None:
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.set_default_timeout(seconds(30) * 1000)
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    drawn, wide = 0, list[str]()
    pages = [
        page for page in sorted(SITE.rglob("*.html")) if re.search("<(img|iframe|pre class=.mermaid)", page.read_text())
    ]
    for page in [SITE / "index.html", SITE / "reference/configuration/index.html", *pages]:
        tab.goto(site + page.relative_to(SITE).as_posix())
        expect(tab.locator("pre.mermaid")).to_have_count(0, timeout=seconds(30) * 1000)
        drawn += tab.locator("div.mermaid").count()
        if tab.evaluate("document.documentElement.scrollWidth") > 390:
            wide.append(str(page))
    assert [url for url in asked if not url.startswith((site, "data:"))] == []
    assert drawn == 3
    assert wide == []


QUESTIONS = {
    "how do I limit a tenant": "reference/budgets",
    "set a budget": "reference/budgets",
    "install": "how-to/install",
    "connect claude code": "how-to/integrations",
    "langchain": "how-to/integrations",
    "why was my prompt not cached": "how-to/troubleshooting",
    "restart an engine without losing streams": "how-to/rolling",
    "rotate the secret": "how-to/change",
    "where are the logs": "how-to/logs",
    "how much disk do I need": "how-to/sizing",
    "postgresql size": "how-to/sizing",
    "kubernetes": "how-to/production",
    "what does 429 mean": "reference/errors",
    "price of cached tokens": "reference/prices",
    "idempotency key": "reference/idempotency",
    "session key": "how-to/agents",
    "receipt fields": "reference/receipt",
    "prometheus metrics": "reference/metrics",
    "backup and restore": "how-to/upgrade",
    "vllm": "how-to/vllm",
    "command line options": "reference/commands",
    "compare with litellm": "explanation/comparison",
}
"""What users ask, and the page that answers it."""


def test_the_search_finds_the_right_page_in_the_first_three(browser: Browser, site: str) -> None:
    tab = browser.new_page()
    tab.set_default_timeout(seconds(30) * 1000)
    wrong = {}
    for question, page in QUESTIONS.items():
        tab.goto(f"{site}?q={quote(question)}")
        found = expect(tab.locator(".md-search-result__meta"))
        found.to_contain_text(re.compile("[0-9]+ matching"), timeout=seconds(30) * 1000)  # else 5 s, on any machine
        links = tab.locator(".md-search-result__item > a.md-search-result__link:first-of-type")
        found = [
            str(link.get_attribute("href")).removeprefix(site).split("?")[0].strip("/") for link in links.all()[:3]
        ]
        if page not in found:
            wrong[question] = found
    assert wrong == {}
