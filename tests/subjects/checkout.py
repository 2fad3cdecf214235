"""A copy of the checkout, and its command, for tests that follow what a page tells a user to do."""

import re
import shutil
import subprocess
import sys
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


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def warmroute_in(folder: Path, module: str = "warmroute_cli.main") -> None:
    """Put the command into a folder, as an installation puts it into the path."""
    program = folder / "warmroute"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
    program.chmod(0o755)
