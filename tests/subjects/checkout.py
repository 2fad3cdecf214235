"""A copy of the checkout, for tests that follow what a user does in a fresh clone."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def copy_of_the_checkout(folder: Path) -> Path:
    """What git would have of it, and nothing that was built but uv."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    if (ROOT / ".venv-uv").exists():  # each clean clone that runs tests has shown that it is made
        (folder / ".venv-uv").symlink_to(ROOT / ".venv-uv")
    return folder
