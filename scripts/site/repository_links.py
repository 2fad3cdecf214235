"""A hook of MkDocs: links of pages to files of the repository that the site has as well stay within the site.

On GitHub and in a clone, pages link to files outside of docs/ by their address there. Three of these files are read
like pages, and the site shows them.
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY: Final = "https://github.com/warmroute/warmroute/blob/main/"
SHOWN: Final = {
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "integrations/opencode/README.md": "how-to/opencode.md",
}
"""File of the repository -> page of the site."""

_PICTURE: Final = re.compile(r"(?<=\]\()(?P<path>[\w./-]+\.png)(?=\))")
_LINK: Final = re.compile(r"(?<=\]\()(?!https?://|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages. Their links are relative to their folder in the repository."""
    root = Path(config.config_file_path).parent
    for path, name in SHOWN.items():
        text = (root / path).read_text()
        for picture in _PICTURE.findall(text):
            beside = posixpath.join(posixpath.dirname(name), picture)
            files.append(File.generated(config, beside, abs_src_path=str((root / path).parent / picture)))
        files.append(File.generated(config, name, content=_LINK.sub(_moved(path, name), text)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to these files to their pages."""
    here = posixpath.dirname(page.file.src_uri)
    for path, name in SHOWN.items():
        markdown = markdown.replace(f"({REPOSITORY}{path})", f"({posixpath.relpath(name, here or '.')})")
    return markdown


def _moved(path: str, name: str) -> Any:
    """What a link of a file becomes on its page: of docs/ relative to the page, of other files their address."""

    def link(match: re.Match[str]) -> str:
        if match["path"].endswith(".png"):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match["path"]))
        anchor = match["anchor"] or ""
        if target.startswith("docs/"):
            return posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(name) or ".") + anchor
        return f"{REPOSITORY}{target}{anchor}"

    return link
