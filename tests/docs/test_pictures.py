"""The pictures of the docs are those that the script draws."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "pictures.py"
PLACEMENT = (ROOT / "docs/explanation/placement.md").read_text()


def test_the_pictures_are_current() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert done.returncode == 0, "run scripts/pictures.py"


def test_the_life_of_a_turn_has_the_terms_and_steps_of_its_page() -> None:
    picture = (ROOT / "docs/images/turn.svg").read_text()
    terms = re.findall(r"^\| ([a-z]+) \|", PLACEMENT, re.MULTILINE)
    assert f">{' + '.join(terms)}<" in picture
    steps = re.findall(r"^\| (\d) (\w+) \|", PLACEMENT, re.MULTILINE)
    assert len(steps) == 8
    assert [step for step, word in steps if f"{step}  {word.lower()}" not in picture] == ["8"]
    assert "8  receipt" in picture
