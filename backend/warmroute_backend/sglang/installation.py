"""Finds the installation of SGLang for a CPU, or tells how to install it."""

import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
CHECKOUT_VARIABLE = "WARMROUTE_SGLANG_CHECKOUT"
"""An environment variable that names another checkout of this repository, whose installation is used."""

VENV = ".venv-sglang"
MODEL = "tiny-model"
STAMP = ".stamp"
"""The file that `scripts/sglang install` writes last: an installation without it may be incomplete."""


class NotInstalledError(Exception):
    """SGLang is not installed. The message has the command that installs it."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The Python that has SGLang, the launcher that makes it run on a CPU, and the tiny model."""

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
    """The installation in a checkout: by default the checkout that `CHECKOUT_VARIABLE` names, else this checkout.
    Raises: NotInstalledError."""
    checkout = checkout or Path(os.environ.get(CHECKOUT_VARIABLE) or CHECKOUT)
    venv = checkout / VENV
    if not (venv / STAMP).is_file():
        raise NotInstalledError(
            f"SGLang is not installed in {venv}: run `scripts/sglang install` in a checkout of warmroute "
            "(3 GB on disk, some minutes)"
        )
    return Installation(venv / "bin" / "python", checkout / "scripts" / "sglang_cpu" / "launch.py", venv / MODEL)
