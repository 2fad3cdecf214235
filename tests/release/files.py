"""Where the files of a release are, and what tests do with them."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DIST: Final = ROOT / "dist"
UV: Final = ROOT / ".venv-uv" / "bin" / "uv"

Run = Callable[..., subprocess.CompletedProcess[str]]
Install = Callable[..., Path]
