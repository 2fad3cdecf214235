"""`uv.lock` is of the requirements in `pyproject.toml`: after a change there, `uv lock` is due."""

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
NO_EXTRA = ""


def locked() -> dict[str, Any]:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    (own,) = (each["metadata"] for each in packages if each["name"] == PROJECT["project"]["name"])
    return dict(own)


def shown(entries: Iterable[dict[str, Any]]) -> set[tuple[str, str, SpecifierSet]]:
    """Name with extras, marker and range of what the lock requires."""
    return {
        (
            f"{each['name']}{sorted(each.get('extras', []))}",
            each.get("marker", NO_EXTRA),
            SpecifierSet(each["specifier"]),
        )
        for each in entries
    }


def required(lines: Iterable[str], marker: str) -> Iterator[tuple[str, str, SpecifierSet]]:
    """The same of the project, where an extra may name others."""
    for found in map(Requirement, lines):
        if found.name == PROJECT["project"]["name"]:
            for extra in found.extras:
                yield from required(EXTRAS[extra], marker)
        else:
            yield f"{found.name}{sorted(found.extras)}", marker, found.specifier


def test_the_lock_is_of_the_requirements() -> None:
    expected = set(required(PROJECT["project"]["dependencies"], NO_EXTRA))
    for extra, lines in EXTRAS.items():
        expected |= set(required(lines, f"extra == '{extra}'"))
    assert shown(locked()["requires-dist"]) == expected


def test_the_lock_is_of_the_groups() -> None:
    groups = {name: set(required(lines, NO_EXTRA)) for name, lines in PROJECT["dependency-groups"].items()}
    assert {name: shown(entries) for name, entries in locked().get("requires-dev", {}).items()} == groups
