"""The map of scripts names each of them."""

import re
from pathlib import Path

SCRIPTS = Path(__file__).parents[3] / "scripts"


def test_the_map_names_every_script() -> None:
    named = set(re.findall(r"`([\w.-]+)`", (SCRIPTS / "README.md").read_text().partition("|---|---|")[2]))
    there = {path.name for path in SCRIPTS.iterdir() if path.name not in {"README.md", "__pycache__", "__init__.py"}}
    assert named == there
