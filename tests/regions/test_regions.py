"""One seed of three regions: every kind of fault, on embedded engines. `python -m tests.regions` has more."""

import subprocess
import sys
from pathlib import Path

import pytest

from .namespaces import missing


@pytest.mark.timeout(1500)
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_one_seed_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.regions", "--seed", "1", "--folder", str(tmp_path)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "everything holds" in run.stdout
