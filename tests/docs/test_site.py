"""The site of the docs: one name a page, links that stay on it, and pages that are made from the code."""

import re
from pathlib import Path

from scripts.command_page import PAGE, page

ROOT = Path(__file__).parents[2]
SOURCES = "https://github.com/warmroute/warmroute/blob/main/"
INDEX = (ROOT / "docs/index.md").read_text()
SHOWN = {
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "integrations/opencode/README.md": "how-to/opencode.md",
}
"""Files outside of docs/ that are pages of the site: `scripts/site/repository_links.py`."""


def test_every_page_has_a_place_in_the_site() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"(?:- |: )([\w/-]+\.md)$", config, re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    listed = {page for page in pages if page.startswith(("runbooks/", "decisions/")) and not page.endswith("README.md")}
    assert named - set(SHOWN.values()) == pages - listed
    assert set(SHOWN.values()) <= named


def test_a_page_has_one_name() -> None:
    """Its title, which the navigation shows, and the links of the index are the same; no two pages share one."""
    config = (ROOT / "mkdocs.yml").read_text()
    titles = {
        name: title(ROOT / "docs" / name)
        for name in re.findall(r"- ([\w/-]+\.md)$", config, re.MULTILINE)
        if name not in SHOWN.values()
    }
    assert len(titles) > 80
    assert [name for name, words in titles.items() if re.search(r"[`*_\[]", words)] == []
    assert sorted(titles.values()) == sorted(set(titles.values()))
    table = INDEX.partition("## Find a page")[2]
    links = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", table)
    assert len(links) > 50
    assert [words for words, name in links if words != titles[name]] == []


def title(page: Path) -> str:
    (first, *_) = re.findall(r"^# (.*)$", page.read_text(), re.MULTILINE)
    return str(first)


def test_pages_of_users_link_to_no_page_on_github_that_the_site_lacks() -> None:
    """Sources of contributors are there; what users read is on the site (`scripts/site/repository_links.py`)."""
    users = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name not in {"contribute", "decisions"}]
    prose = {link for page in users for link in re.findall(rf"\]\({SOURCES}([^)#]+\.md)", page.read_text())}
    assert prose <= {*SHOWN, "bench/README.md"}


def test_the_result_of_the_front_page_is_that_of_the_readme() -> None:
    (row,) = re.findall(r"^\| all \|.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    cells = [cell.strip() for cell in row.split("|")]
    shown = re.findall(r"^\| (?:prompt tokens read|time to the first).*$", INDEX, re.MULTILINE)
    figures = [cell.strip().removesuffix(" ms") for row in shown for cell in row.split("|")[2:4]]
    assert figures == cells[-5:-1]


def test_the_page_of_commands_is_the_command_line() -> None:
    assert PAGE.read_text() == page()
