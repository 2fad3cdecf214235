"""The import rules of the SDK name every module that is its clients' own."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
OF_ALL_SIDES = {"contract", "guard"}


def test_no_module_of_the_clients_is_missing() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    there = {path.stem for path in (ROOT / "sdk/warmroute").iterdir() if not path.stem.startswith("__")} - OF_ALL_SIDES
    lists = [set(each.get("forbidden_modules", ())) for each in contracts]
    lists = [each for each in lists if "warmroute._client" in each]
    assert len(lists) == 2
    for forbidden in lists:
        assert {f"warmroute.{name}" for name in there if name != "py"} <= forbidden
