"""Names and numbers in the pages are those of the code: extras, metrics, commands, error codes, limits."""

import argparse
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from warmroute_cli.main import parser
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.base.declared_metrics import BY_NAME
from warmroute_proxy.server.http.shared_bytes import LARGE_BYTES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [path for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")] if "decisions" not in path.parts]
UNITS = {"s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]) - {"dev"}


def commands() -> set[str]:
    """The subcommands of `warmroute`."""
    (action,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return set(action.choices)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_what_exists(page: Path) -> None:
    text = page.read_text()
    named = {name.strip() for group in re.findall(r"warmroute\[([\w, ]+)\]", text) for name in group.split(",")}
    assert named - EXTRAS == set()
    metrics = set(re.findall(r"\bwarmroute_[a-z_]+[a-z](?![\w*.])", text)) - {"warmroute_cache"}
    families = {name if name in BY_NAME else re.sub("_(bucket|sum|count)$", "", name) for name in metrics}
    packages = {"warmroute_proxy", "warmroute_cli", "warmroute_backend", "warmroute_lab"}
    assert families <= BY_NAME.keys() | packages
    words = set(re.findall(r"`warmroute ([a-z]+)\b", text)) - {"compiled"}  # a build, in benchmarks
    assert words - commands() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_the_defaults_of_limits(page: Path) -> None:
    defaults = {field.name: field.default for field in fields(Limits)}
    found = re.findall(r"`(?:\[limits\] )?(\w+)`(?: \(| = )([\d,.]+) (s|KiB|MiB|GiB)\b(?! in all)", page.read_text())
    stated = {name: float(number.replace(",", "")) * UNITS[unit] for name, number, unit in found if name in defaults}
    assert stated == {name: defaults[name] for name in stated}


@pytest.mark.parametrize("page", ["reference/configuration", "reference/errors", "reference/hostile", "how-to/sizing"])
def test_a_page_has_the_size_from_which_bodies_are_large(page: str) -> None:
    assert f"{LARGE_BYTES >> 20} MiB" in " ".join((DOCS / f"{page}.md").read_text().split())


def test_the_extras_of_the_installation_are_those_of_the_package() -> None:
    table = (DOCS / "how-to/install.md").read_text().partition("| Extra |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == EXTRAS


def test_the_codes_of_troubleshooting_are_in_the_reference_with_their_status() -> None:
    row = re.compile(r"^\| (\d{3}) \| `(\w+)` \|", re.MULTILINE)
    codes = set(row.findall((DOCS / "how-to/troubleshooting.md").read_text()))
    assert codes
    assert codes - set(row.findall((DOCS / "reference/errors.md").read_text())) == set()


def test_the_gain_of_compiling_is_that_of_the_benchmark() -> None:
    """By an agent's turn (w5) and the same turn with a stream (w5s), and a small request (w1)."""
    relay = (DOCS / "benchmarks/relay.md").read_text().partition("## Figures")[2].partition("<!-- end of figures")[0]

    def figures(name: str) -> list[float]:
        rows = re.findall(rf"^\| {name} \| ([\d.]+)[^|]*\|(?: [^|]*\|)? ([\d.]+)[^|]*\|", relay, re.MULTILINE)
        (turn, stream), (small, _) = rows[0], rows[-1]
        return [float(turn), float(stream), float(small)]

    changes = [
        after / before - 1 for before, after in zip(figures("warmroute"), figures("warmroute compiled"), strict=True)
    ]
    turn, stream, small = (round(100 * change) for change in changes)
    python, install = ((DOCS / page).read_text() for page in ("explanation/python.md", "how-to/install.md"))
    assert f"({turn} %)" in python
    assert f"({stream:+} %)" in python
    for page in (" ".join(each.split()) for each in (python, install)):
        assert f"{-turn} % less CPU for an agent's turn" in page
        assert f"{-stream} % less with a stream" in page
        assert f"{-small} % less for a small request" in page


def test_the_fall_of_the_hit_ratio_is_that_of_the_benchmark() -> None:
    text = " ".join((DOCS / "explanation/working-set.md").read_text().split())
    row = re.search(
        r"^\| Claude Code, N=8, 1\.5M tokens a worker \| 5 \| ([\d.]+) .*?\| ([\d.]+) .*?\| ([\d.]+) (\w+)",
        (DOCS / "benchmarks/placement.md").read_text(),
        re.MULTILINE,
    )
    assert row
    alone, events, best = row.groups()[:3]
    assert f"to {alone} with 1.5 million ({events} with KV events)" in text
    assert f"other policy reaches {best}" in text


DECISIONS = sorted((DOCS / "decisions").glob("0*.md"))


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_its_four_parts_and_a_line_in_the_index(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Status", "Context", "Decision", "Consequences"]
    assert all(part.strip() for part in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:])
    has_evidence = re.search(r"^(\||    )", text, re.MULTILINE)
    assert has_evidence or len(text.splitlines()) <= 60
    (line,) = (
        row for row in (DOCS / "decisions/README.md").read_text().splitlines() if row.startswith(f"| {page.name[:3]} |")
    )
    superseded = re.search(r"^Superseded", text, re.MULTILINE) is not None
    assert ("| superseded" in line) == superseded
