"""What may be imported of the SDK, whose modules are its clients' own but for the contract and the reader of files.

import-linter has the other rules. It has no pattern for private modules, so that each would be listed.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXCEPTIONS = {
    # The sentences about causes of a broken prefix stand beside the causes.
    ("proxy/warmroute_proxy/server/control/receipt_words.py", "warmroute.guard.causes"),
}


def imported(path: Path) -> Iterator[str]:
    """The modules of the SDK that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = (
                [f"warmroute.{each.name}" for each in node.names] if node.module == "warmroute" else [node.module or ""]
            )
        else:
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        yield from (name for name in names if name.partition(".")[0] == "warmroute")


def room_of(module: str) -> str:
    """The part of the SDK that a module is in."""
    return "".join(module.split(".")[1:2])


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("sdk/warmroute/contract", {"contract"}),
        ("sdk/warmroute/files", {"files"}),
        ("proxy/warmroute_proxy", {"contract", "files"}),
        ("lab/warmroute_lab/engine", {"contract"}),
        ("sdk/warmroute/guard", {"guard", "contract"}),
    ],
)
def test_only_some_parts_of_the_sdk_are_imported(folder: str, allowed: set[str]) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    found = {(path.relative_to(ROOT).as_posix(), name) for path in files for name in imported(path)}
    assert {room_of(name) for _, name in found} >= allowed
    assert {each for each in found - EXCEPTIONS if room_of(each[1]) not in allowed} == set()
