"""The examples of docs/how-to/guard.md run against an embedded fleet, and print what the page says.

`WARMROUTE_UPDATE_DOCS=1` writes what they print into the page. Numbers of tokens and prices are the fleet's.
"""

import contextlib
import io
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.subjects.copies import CopiedFleet

from warmroute.guard.causes import Cause
from warmroute.guard.repair import Rule
from warmroute_lab.fleet import FleetOptions, LocalFleet

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "guard.md"
_EXAMPLE = re.compile(
    r"(^### (?P<name>[^\n]+)\n.*?^```python\n)(?P<code>.*?)(^```\n\n```text\n)(?P<says>.*?)(^```)",
    re.DOTALL | re.MULTILINE,
)
_PRELUDE = re.compile(r"^The examples need.*?^```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
_NUMBERS = re.compile(r"about [\d,]+ tokens|[\d.]+ USD")
EXAMPLES = {found["name"]: found for found in _EXAMPLE.finditer(PAGE.read_text())}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    folder = tmp_path_factory.mktemp("guard")
    with CopiedFleet(folder, folder / "up", FleetOptions(speed=50)) as made:
        yield made


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_the_page_says(name: str, fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", fleet.proxies["east"].base_url)
    monkeypatch.setenv("OPENAI_API_KEY", fleet.api_key)
    prelude = _PRELUDE.search(PAGE.read_text())
    assert prelude is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(prelude["code"] + EXAMPLES[name]["code"], str(PAGE), "exec"), {"__name__": "example"})
    if os.environ.get("WARMROUTE_UPDATE_DOCS"):
        found = next(each for each in _EXAMPLE.finditer(PAGE.read_text()) if each["name"] == name)
        text = PAGE.read_text()
        PAGE.write_text(text[: found.start("says")] + printed.getvalue() + text[found.end("says") :])
        return
    assert _NUMBERS.sub("N", printed.getvalue()) == _NUMBERS.sub("N", EXAMPLES[name]["says"])


def test_each_cause_has_its_example_and_each_rule_its_row() -> None:
    assert {cause for name in EXAMPLES for cause in name.split(", ")} == set(Cause)
    text = PAGE.read_text()
    assert all(f"| `{rule}` |" in text for rule in Rule)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_shows_its_cause_in_ten_lines(name: str) -> None:
    assert len(EXAMPLES[name]["code"].splitlines()) <= 10
    assert name == "cache-marks" or all(cause in EXAMPLES[name]["says"] for cause in name.split(", "))
