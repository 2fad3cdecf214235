"""Links of the documents lead somewhere, on the site, in a clone and on an index of packages."""

import re
import tomllib
from pathlib import Path

import pytest

from warmroute.contract.version import VERSION

ROOT = Path(__file__).parents[2]
SOURCES = "https://github.com/warmroute/warmroute/blob/main/"
"""Where pages, which are also a site, find files outside of docs/, and the README everything."""

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()


def test_the_readme_is_short_and_its_links_lead_to_files_of_the_clone() -> None:
    assert len(README.splitlines()) < 140
    targets = [target for target in re.findall(r"\]\(([^)]*)\)", README) if not target.startswith("https://")]
    assert len(targets) > 10
    assert [target for target in targets if not (ROOT / target).is_file()] == []


def test_links_of_the_readme_lead_to_the_release_on_an_index() -> None:
    """The rules are those of pyproject.toml; `scripts/release_check.py` looks at what a build made of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shown = README
    for each in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(each["pattern"], each["replacement"].replace("$HFPR_VERSION", VERSION), shown)
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    pages = [target for target in targets if target.startswith("https://github.com/warmroute/warmroute/")]
    assert len(pages) > 10
    assert all(target.startswith(f"https://github.com/warmroute/warmroute/blob/v{VERSION}/") for target in pages)
    pictures = [target for target in targets if target.endswith(".svg")]
    assert pictures
    raw = f"https://raw.githubusercontent.com/warmroute/warmroute/v{VERSION}/"
    assert all(target.startswith(raw) for target in pictures)


def test_the_index_leads_to_every_page_of_users() -> None:
    """In three clicks; what builders read is reached from their index."""
    found, todo = set[Path](), [ROOT / "docs/index.md"]
    for _ in range(4):
        found |= set(todo)
        links = (
            (page.parent / target).resolve()
            for page in todo
            for target in re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text())
        )
        todo = [page for page in dict.fromkeys(links) if page not in found]
    assert set((ROOT / "docs").rglob("*.md")) - found == set()


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if target.startswith(SOURCES):
            assert (ROOT / target.removeprefix(SOURCES)).exists(), target
        elif not target.startswith("https://"):
            found = page.parent / target if target else page
            assert found.exists(), target
            assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
