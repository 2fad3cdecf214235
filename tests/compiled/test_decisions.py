"""Compiled or not, a router decides the same: each build plays the other's record back, and they are the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATHS = {
    "compiled": os.environ.get("PYTHONPATH", ""),
    "sources": os.pathsep.join(str(ROOT / part) for part in ("sdk", "proxy", "backend", "lab")),
}
SEED = 7


def in_build(build: str, *arguments: object) -> list[str]:
    """The lines that `decisions` says there."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.compiled.decisions", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PATHS[build], "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    said = done.stdout.splitlines()
    assert said[0] == build
    return said[1:]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The record of the same calls, by build."""
    folder = tmp_path_factory.mktemp("records")
    for build in PATHS:
        in_build(build, "record", folder / build, SEED)
    return {build: folder / build for build in PATHS}


def test_both_builds_decide_the_same_for_the_same_reasons(records: dict[str, Path]) -> None:
    assert records["compiled"].read_bytes() == records["sources"].read_bytes()


@pytest.mark.parametrize(("made_by", "played_by"), [("compiled", "sources"), ("sources", "compiled")])
def test_each_build_plays_the_record_of_the_other(records: dict[str, Path], made_by: str, played_by: str) -> None:
    decisions, differing, first = in_build(played_by, "verify", records[made_by])[0].split(" ", 2)
    assert (differing, first) == ("0", "None")
    assert int(decisions) > 2_000
