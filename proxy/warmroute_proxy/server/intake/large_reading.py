"""The process that reads large bodies: `intake.read` over memory that the proxy's process has filled."""

import ctypes
import hashlib
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from warmroute.contract.conversations import MAX_ASKED_BYTES
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.intake.body import Body
from warmroute_proxy.server.intake.caller import Caller
from warmroute_proxy.server.intake.intake import ReadBody, read_body
from warmroute_proxy.server.intake.large_body import NamedSpan

PR_SET_PDEATHSIG: Final = 1


class LargeRequest(NamedTuple):
    """What the process is asked: all that a request is read by. `where` is the path of `size` bytes in memory."""

    where: str
    size: int
    path: str
    tenant: str
    headers: Mapping[str, str]
    region: str | None


class LargeAnswer(NamedTuple):
    """What it found. The intake has no body, and copies of what the config says of tenant and model."""

    read: ReadBody
    spans: list[NamedSpan]
    sha256: str


class Refused(NamedTuple):
    """Why it is refused: the parts of a `Refusal`."""

    status: int
    message: str
    code: str | None
    param: str | None

    def refusal(self) -> Refusal:
        """As an exception."""
        return Refusal(self.status, self.message, code=self.code, param=self.param)


class _Reading:
    """What this process reads with."""

    def __init__(self, config: Config, secrets: Secrets) -> None:
        self._config = config
        self._secrets = secrets
        self._tenants = {tenant.name: tenant for tenant in config.tenants}

    def read(self, asked: LargeRequest) -> LargeAnswer | Refused:
        """Read a body."""
        with Path(asked.where).open("rb") as memory:
            raw = memory.read(asked.size)
        try:
            caller = Caller(asked.path, self._tenants[asked.tenant], asked.headers, self._secrets, asked.region)
            found = read_body(raw, caller, self._secrets, self._config)
        except Refusal as refusal:
            return Refused(refusal.status, refusal.message, refusal.code, refusal.param)
        body = found.intake.body
        assert isinstance(body, Body)
        spans = [NamedSpan(name, span.start, span.end) for name, span in body.spans.items()]
        nothing: Any = None
        prompt = found.prompt
        if prompt.asked is not None and len(prompt.asked[-1]) > MAX_ASKED_BYTES:
            prompt = replace(prompt, asked=None)  # too long to come back shortened, and to be sent to the proxy
        without_body = found._replace(intake=replace(found.intake, body=nothing), prompt=prompt)
        return LargeAnswer(without_body, spans, hashlib.sha256(raw).hexdigest())


_READING: Final[list[_Reading]] = []  # one, in this process: the pool calls functions of a module


def start(config: Config, secrets: Secrets) -> None:
    """Called once in the process, which ends with the thread that has started it (Linux): the proxy's event loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the proxy ends this process
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _READING.append(_Reading(config, secrets))


def read(asked: LargeRequest) -> LargeAnswer | Refused:
    """Called for each body."""
    return _READING[0].read(asked)
