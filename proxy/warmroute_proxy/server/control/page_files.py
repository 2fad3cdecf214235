"""The files of the admin page, which a browser gets without a key, and the headers that isolate the page.

Files are read once, when the proxy starts. The page calls the routes of `view_routes` with the key that its user types.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import FastAPI, Response

from warmroute_proxy.server.control.answers import get

FOLDER: Final = Path(__file__).parent / "page"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    content: bytes
    media_type: str


def page_files() -> dict[str, PageFile]:
    """Path -> file. `/page` is the page itself."""
    files = {
        f"/page/{path.name}": PageFile(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(FOLDER.iterdir())
        if path.suffix in _TYPES
    }
    return {"/page": files.pop("/page/page.html"), **files}


def add_page(app: FastAPI, files: Mapping[str, PageFile]) -> None:
    for path, file in files.items():
        _add(app, path, file)

    @get(app, "/")
    async def to_page() -> Response:
        """Redirect from the address of the listener to the page."""
        return Response(status_code=303, headers={**HEADERS, "location": "/page"})


def _add(app: FastAPI, path: str, file: PageFile) -> None:
    @get(app, path)
    async def answer() -> Response:
        """A file of the page."""
        return Response(file.content, media_type=file.media_type, headers=HEADERS)
