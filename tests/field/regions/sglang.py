"""A real SGLang on the CPU in the namespace of a region, in the place of the embedded engines. By hand."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from warmroute_backend.sglang import Server

from .namespaces import asked_inside

ENGINE: Final = "a0"
"""The one engine of a region, aggregated: a server takes a core and 2 GB."""


class RegionalServer(Server):
    """Reached from inside the region alone."""

    def __init__(self, enter: Sequence[str], folder: Path, model: str) -> None:
        super().__init__("aggregated", folder, name=ENGINE, flags=["--served-model-name", model])
        self._enter = tuple(enter)

    def is_ready(self) -> bool:
        """Asked from there."""
        return asked_inside(self._enter, f"{self.url}/ready") is not None

    def under_way(self) -> int:
        """How many requests it has."""
        loads = json.loads(asked_inside(self._enter, f"{self.url}/v1/loads") or b"{}")
        return sum(each["num_running_reqs"] + each["num_waiting_reqs"] for each in loads.get("loads", []))

    def _spawn(self, command: Sequence[str], log: BinaryIO, env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        return super()._spawn([*self._enter, *command], log, env)
