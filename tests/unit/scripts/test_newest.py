"""Pins at the newest versions, and what a program sends that its pinned version does not."""

import json
from pathlib import Path

import pytest
from scripts.newest import __main__ as newest
from tests.field.agents.shapes import names_in

RESULTS = """<testsuites><testsuite><testcase name="test_one[pi]"><failure message="assert 1 == 2&#10;more"/></testcase>
<testcase name="test_other"/></testsuite></testsuites>"""


def test_pins_get_the_newest_versions_and_keep_those_that_are_not_found(tmp_path: Path) -> None:
    moved = newest.write_pins(tmp_path, lambda name: "9.9.9" if name == "openai" else "", lambda _: "8.8.8")
    node = json.loads((tmp_path / "package.json").read_text())["dependencies"]
    pinned = json.loads((newest.PINS / "package.json").read_text())["dependencies"]
    assert node == {**pinned, "openai": "9.9.9"}
    frameworks = (tmp_path / "frameworks.txt").read_text().splitlines()
    assert any(line.startswith("pydantic-ai-slim[openai]>=") for line in frameworks)
    assert (tmp_path / "agents/mistral-vibe.txt").read_text().startswith("# Python 3.13\n")
    assert ("openai", pinned["openai"], "9.9.9") in moved


def test_a_shape_has_names_and_kinds_and_nothing_of_the_users() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a secret", "cache_control": {"ttl": "1h"}}]}
        ],
        "tools": [{"name": "mine", "input_schema": {"properties": {"own": {}}}}],
        "metadata": {"user_id": "me"},
    }
    found = set(names_in(body))
    assert {"messages[].role=user", "messages[].content[].type=text", "messages[].content[].cache_control.ttl"} <= found
    assert {"tools[].input_schema", "metadata"} <= found
    assert not [name for name in found if "own" in name or "secret" in name or "user_id" in name]


def test_a_report_names_what_is_new_and_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tmp_path / "known.json"
    known.write_text(json.dumps({"pi": {"names": ["model"], "hit": 0.5, "ideal": 0.5}}))
    monkeypatch.setattr(newest, "SHAPES", known)
    (tmp_path / "agents.xml").write_text(RESULTS)
    shapes = {"pi": {"names": ["header x-new", "model"], "hit": 0.4, "ideal": 0.5}}
    text = "\n".join(newest.report(shapes, tmp_path, [("pi", "1.0", "2.0"), ("same", "1.0", "1.0")]))
    assert "| pi | 1.0 | 2.0 |" in text
    assert "| same |" not in text
    assert "| pi | 40.0% | 50.0% | `header x-new` |" in text
    assert "- `test_one[pi]`: assert 1 == 2" in text
