"""One seed of three regions: every kind of fault, on embedded engines. `python -m tests.field.regions` has more."""

import subprocess
import sys
from pathlib import Path

import pytest

from .namespaces import missing

OLDER = "d52144d6"
"""A commit whose proxies go on with a later schema of the database, where that names them as readers."""

pytestmark = [pytest.mark.timeout(1500), pytest.mark.skipif(bool(missing()), reason=missing())]


def holds(folder: Path, *options: str) -> str:
    """The output of a run in which everything does."""
    command = [sys.executable, "-m", "tests.field.regions", "--folder", str(folder), *options]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "everything holds" in run.stdout
    return run.stdout


def test_one_seed_holds(tmp_path: Path) -> None:
    holds(tmp_path, "--seed", "1")


def test_a_region_of_an_older_version_works_with_the_others_and_is_upgraded(tmp_path: Path) -> None:
    known = subprocess.run(["git", "cat-file", "-e", f"{OLDER}^{{commit}}"], check=False, capture_output=True)
    if known.returncode:
        pytest.skip(f"this checkout has no history with {OLDER}")
    assert "upgrade north" in holds(tmp_path, "--seed", "1", "--beside", OLDER, "--faults", "cut")
