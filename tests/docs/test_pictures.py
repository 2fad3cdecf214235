"""The pictures of the docs are those that the script draws."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "pictures.py"


def test_the_pictures_are_current() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert done.returncode == 0, "run scripts/pictures.py"
