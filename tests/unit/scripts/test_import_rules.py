"""What may be imported of the SDK, whose modules are its clients' own but for the contract.

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


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("sdk/warmroute/contract", "contract"),
        ("proxy/warmroute_proxy", "contract"),
        ("backend/warmroute_backend", "contract"),
        ("sdk/warmroute/guard", "guard"),
    ],
)
def test_only_one_part_of_the_sdk_is_imported(folder: str, allowed: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    found = {(path.relative_to(ROOT).as_posix(), name) for path in files for name in imported(path)}
    assert any(name.split(".")[1:2] == [allowed] for _, name in found)
    assert {each for each in found - EXCEPTIONS if each[1].split(".")[1:2] != [allowed]} == set()
