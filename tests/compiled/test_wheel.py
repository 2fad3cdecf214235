"""What the documented command installed from a clean copy (`scripts/compiled-tests`), and the replay that uses it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "build" / "installed" / "bin"
SHOWS = """
import warmroute_proxy, warmroute_proxy.core.placement.router as router, warmroute_lab.replay.production as production
print(warmroute_proxy.COMPILED, router.__file__.endswith(".so"), production.Router is router.Router)
"""


def said(folder: Path, *command: str | Path) -> list[list[str]]:
    """The words of the lines that the command prints, where no other build is found than its own."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, check=True, cwd=folder, env=environ, capture_output=True, text=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_an_installed_wheel_is_compiled_and_the_replay_uses_it(tmp_path: Path) -> None:
    assert said(tmp_path, PROGRAMS / "python", "-c", SHOWS) == [["True"] * 3]
    played = said(tmp_path, PROGRAMS / "warmroute", "replay", "--recorded")
    own = said(ROOT, sys.executable, "-m", "warmroute_cli.main", "replay", "--recorded")
    assert [words[:9] for words in played[:2]] == [words[:9] for words in own[:2]]
