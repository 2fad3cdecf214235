"""The programs that the launcher runs, as plain values: command line, address, and what the log should say."""

import hashlib
import json
from dataclasses import dataclass
from typing import Final, Literal


class LaunchError(Exception):
    """A launch that cannot begin or go on."""


EngineKind = Literal["sglang", "embedded", "sglang-cpu"]
ENGINES: Final[tuple[EngineKind, ...]] = ("sglang", "embedded", "sglang-cpu")


Kind = Literal["store", "lmcache", "weights", "prefill", "decode", "aggregated", "proxy"]

STAGES: Final[tuple[tuple[Kind, ...], ...]] = (
    ("store", "lmcache", "weights"),
    ("prefill", "aggregated", "decode"),
    ("proxy",),
)
"""Kinds of programs in the order of their start. A stage begins when all programs of earlier stages serve. So all
engines load at the same time.
"""

START_TIMEOUT_S: Final = 3_600.0
"""Long enough for a trillion parameters, which load for up to half an hour before graphs are captured."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The plan's values for one rank: tokens in its KV pool, and the bytes of the pool on one GPU."""

    tokens: int
    kv_bytes: float


@dataclass(frozen=True, slots=True)
class Program:
    """One process to run. `host`: its address as seen from this machine; `ports`: name of a use -> port.

    `ready_path`: the path that answers 200 once the program serves. If it is empty, the program serves once its port
    `http` accepts connections, or at once if it has no such port. `ready_line`: if set, the program serves once its log
    has this text, and path and port do not count. `needs`: names of programs that have to serve as long as this one
    runs. `source`: where an engine's weights come from.
    """

    name: str
    kind: Kind
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    ready_path: str = "/ready"
    ready_line: str = ""
    needs: tuple[str, ...] = ()
    source: str = "disk"
    host: str = "127.0.0.1"
    expected: Expected | None = None
    start_timeout_s: float = START_TIMEOUT_S
    stop_timeout_s: float = 60.0
    has_tls: bool = False
    """Whether `http` is a port with TLS."""

    @property
    def stage(self) -> int:
        return next(number for number, kinds in enumerate(STAGES) if self.kind in kinds)

    @property
    def is_engine(self) -> bool:
        return self.kind not in {"store", "lmcache", "weights", "proxy"}

    def port(self, name: str) -> int | None:
        return dict(self.ports).get(name)

    @property
    def has_metrics(self) -> bool:
        """Whether this process serves an engine's metrics. Of an engine over several nodes, only the first process
        serves them.
        """
        return self.is_engine and self.port("http") is not None

    @property
    def url(self) -> str:
        return f"{'https' if self.has_tls else 'http'}://{self._url_host}:{self.port('http')}"

    @property
    def bootstrap_url(self) -> str | None:
        """Where the ranks of a prefill engine register; None for other programs."""
        port = self.port("bootstrap")
        return None if port is None else f"http://{self._url_host}:{port}"

    @property
    def _url_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def digest(self) -> str:
        """A digest of what decides how the program runs: its command and environment."""
        content = json.dumps([self.command, self.environment])
        return hashlib.sha256(content.encode()).hexdigest()[:16]
