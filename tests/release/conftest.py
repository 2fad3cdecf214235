"""Environments of users: what pip and uv install from the files of a release, with no checkout on the path."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.machine import seconds
from tests.release.files import DIST, UV, Install, Run

from warmroute.contract.version import VERSION

OF_A_CHECKOUT: Final = ("PYTHONPATH", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV")


@pytest.fixture(scope="session")
def compiled() -> Path:
    """The compiled wheel of this interpreter."""
    return _one_wheel("cp*")


@pytest.fixture(scope="session")
def pure() -> Path:
    """The wheel for any interpreter."""
    return _one_wheel("py3-none-any")


def _one_wheel(tag: str) -> Path:
    found = sorted(DIST.glob(f"warmroute-{VERSION}-{tag}.whl"))
    assert len(found) == 1, f"{DIST} has {len(found)} wheels for {tag} of {VERSION}; run scripts/release --quick"
    return found[0]


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty working directory outside the checkout."""
    folder = tmp_path_factory.mktemp("elsewhere")
    yield folder
    assert not list(folder.glob("*.egg-info"))


@pytest.fixture(scope="session")
def run(elsewhere: Path) -> Run:
    """Run a command there, in the environment of a user; it succeeds, unless `status` says otherwise."""

    def command(
        *words: str | Path, status: int = 0, cwd: Path = elsewhere, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if name not in OF_A_CHECKOUT} | variables
        done = subprocess.run(
            words, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=seconds(150)
        )
        assert done.returncode == status, f"{words}: {done.stdout}{done.stderr}"
        return done

    return command


@pytest.fixture(scope="session")
def install(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Make an environment by uv with requirements in it; its folder of programs."""

    def environment(*requirements: str, seed: bool = False) -> Path:
        programs = tmp_path_factory.mktemp("user") / "env" / "bin"
        run(UV, "venv", *(["--seed"] if seed else []), "--python", sys.executable, programs.parent)
        if requirements:
            run(UV, "pip", "install", "--python", programs / "python", *requirements)
        return programs

    return environment
