"""The site of the docs in a browser: pages with pictures fit a phone, and request nothing from other hosts."""

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

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
