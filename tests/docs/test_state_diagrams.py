"""The diagrams in the documents are those of the state tables."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "state_diagrams.py"


def test_the_diagrams_are_current() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert done.returncode == 0, "run scripts/state_diagrams.py"
