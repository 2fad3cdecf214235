"""When an environment is made again: what `scripts/environment.sh` says that it depends on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).parents[3] / "scripts" / "environment.sh"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(SCRIPT.parents[1] / name, tmp_path)
    return tmp_path


def stamp(checkout: Path, locked: str) -> str:
    environment = {**os.environ, "WARMROUTE_LOCKED": locked}
    command = f'set -eu; source "{SCRIPT}"; stamp_of "{sys.executable}"'
    done = subprocess.run(
        ["bash", "-c", command], cwd=checkout, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("changed", "locked", "again"),
    [("pyproject.toml", "", True), ("pyproject.toml", "1", True), ("uv.lock", "", False), ("uv.lock", "1", True)],
)
def test_an_environment_is_made_again_where_its_versions_may_differ(
    checkout: Path, changed: str, locked: str, again: bool
) -> None:
    before = stamp(checkout, locked)
    with (checkout / changed).open("a") as file:
        file.write("# changed\n")
    assert (stamp(checkout, locked) != before) is again


def test_an_environment_that_somebody_made_anew_is_not_that_of_the_scripts(checkout: Path) -> None:
    made = checkout / ".venv"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").symlink_to(sys.executable)
    (made / "pyvenv.cfg").touch()
    command = f'source "{SCRIPT}"; {{}} has_environment .venv dev && echo kept'

    def kept(first: str) -> bool:
        done = subprocess.run(
            ["bash", "-c", command.format(first)], cwd=checkout, check=False, capture_output=True, text=True
        )
        return done.stdout == "kept\n"

    assert kept('echo "$base dev" >.venv/.stamp;')
    stamped_s = (made / ".stamp").stat().st_mtime
    os.utime(made / "pyvenv.cfg", (stamped_s + 1, stamped_s + 1))
    assert not kept("")


def test_a_locked_environment_is_none_of_the_ranges(checkout: Path) -> None:
    assert stamp(checkout, "1") != stamp(checkout, "")
