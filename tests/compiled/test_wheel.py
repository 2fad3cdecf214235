"""The documented command in a clean clone: a wheel with compiled modules is built, installed and used by the replay."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.machine import seconds

ROOT = Path(__file__).resolve().parents[2]
SHOWS = """
import warmroute_proxy, warmroute_proxy.core.placement.router as router, warmroute_proxy.replay.production as production
print(warmroute_proxy.COMPILED, router.__file__.endswith(".so"), production.Router is router.Router)
"""


@pytest.mark.timeout(1800)
def test_a_clean_clone_builds_a_compiled_wheel_that_the_replay_uses(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clone, home = tmp_path / "clone", tmp_path / "venv"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=seconds(60))
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", f"{clone}[proxy,replay]"],
        check=True,
        cwd=tmp_path,
        env=environ | {"WARMROUTE_COMPILE": "1"},
        timeout=seconds(900),
    )
    shown = subprocess.run([python, "-c", SHOWS], check=True, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert shown.stdout.split() == ["True"] * 3
    replay = [str(home / "bin" / "warmroute"), "replay", "--recorded"]
    played = subprocess.run(replay, check=True, cwd=tmp_path, env=environ, capture_output=True, text=True)
    own = subprocess.run(
        [sys.executable, "-m", "warmroute_cli.main", "replay", "--recorded"],
        check=True, cwd=ROOT, env=environ, capture_output=True, text=True,
    )  # fmt: skip
    assert [line.split()[:9] for line in played.stdout.splitlines()[:2]] == [
        line.split()[:9] for line in own.stdout.splitlines()[:2]
    ]
