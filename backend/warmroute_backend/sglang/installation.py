"""Where SGLang for a CPU is installed, and what to do where it is not."""

import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
CHECKOUT_VARIABLE = "WARMROUTE_SGLANG_CHECKOUT"
"""Names another checkout whose installation is used."""

VENV = ".venv-sglang"
MODEL = "tiny-model"
STAMP = ".stamp"
"""Written last by `scripts/sglang install`: what is there without it may be half of an installation."""


class NotInstalledError(Exception):
    """SGLang is not installed; the message has the command that installs it."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The Python that has SGLang, the launcher that makes it run on a CPU, the tiny model."""

    python: Path
    launcher: Path
    model: Path

    @property
    def master(self) -> Path:
        return self.python.with_name("mooncake_master")

    @property
    def lmcache(self) -> Path:
        return self.python.with_name("lmcache")


def installation(checkout: Path | None = None) -> Installation:
    """What `scripts/sglang install` made in a checkout, else `NotInstalledError`. Without one it is that of
    `CHECKOUT_VARIABLE`, or this one."""
    checkout = checkout or Path(os.environ.get(CHECKOUT_VARIABLE) or CHECKOUT)
    venv = checkout / VENV
    if not (venv / STAMP).is_file():
        raise NotInstalledError(
            f"SGLang is not installed in {venv}: run `scripts/sglang install` in a checkout of warmroute "
            "(3 GB on disk, some minutes)"
        )
    return Installation(venv / "bin" / "python", checkout / "scripts" / "sglang_cpu" / "launch.py", venv / MODEL)
