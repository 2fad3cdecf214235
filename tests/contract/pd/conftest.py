"""Both kinds of pair, each started once."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from tests.contract.pd.pair import Pair
from tests.machine import configured
from tests.subjects.embedded import EmbeddedEngine
from tests.subjects.ports import free_ports
from tests.subjects.sglang import Servers

PATIENT_S = 900.0
"""As long as any machine needs."""

FLAGS = ("--model", "tiny", "--page-size", "16", "--kv-tokens", "32768", "--context-length", "16384")


class EmbeddedPair:
    """A pair of embedded engines; prefill can be ended and started again at its place."""

    def __init__(self, waits_s: float = PATIENT_S) -> None:
        """`waits_s`: how long a leg waits for its partner."""
        self._flags = (*FLAGS, "--bootstrap-timeout-s", f"{waits_s:g}")
        self._ports = free_ports(2)
        self._decode = EmbeddedEngine([*self._flags, "--role", "decode"])
        self.start_prefill()

    @property
    def pair(self) -> Pair:
        return Pair("embedded", self._prefill.url, self._decode.url, self._ports[1])

    def kill_prefill(self) -> None:
        self._prefill.kill()

    def start_prefill(self) -> None:
        """Start it where the last one was."""
        places = ("--port", str(self._ports[0]), "--bootstrap-port", str(self._ports[1]))
        self._prefill = EmbeddedEngine([*self._flags, "--role", "prefill", *places])

    def stop(self) -> None:
        self._prefill.stop()
        self._decode.stop()


@pytest.fixture(scope="session")
def embedded_pair() -> Iterator[EmbeddedPair]:
    """The embedded pair."""
    pair = EmbeddedPair()
    yield pair
    pair.stop()


@pytest.fixture(params=["embedded", "sglang"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A pair with nothing running on it."""
    found = request.getfixturevalue("embedded_pair").pair if request.param == "embedded" else _real(request)
    yield found
    found.abort_all()


@pytest.fixture(params=["embedded", "sglang"])
def impatient_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A pair whose legs give up soon."""
    if request.param == "embedded":
        made = EmbeddedPair(configured(3))
        yield made.pair
        made.stop()
    else:
        yield _real(request)


def _real(request: pytest.FixtureRequest) -> Pair:
    prefill, decode = request.getfixturevalue("sglang_pair")
    return Pair("sglang", prefill.url, decode.url, prefill.bootstrap_port)


@pytest.fixture
def aggregated(request: pytest.FixtureRequest, pair: Pair) -> str:
    """An aggregated engine with the same model as the pair."""
    sglang = "sglang" in request.node.callspec.id
    url = request.getfixturevalue("sglang_aggregated").url if sglang else request.getfixturevalue("embedded_url")
    return str(url)


class Mortal(NamedTuple):
    """The life of an engine: ended as by a crash, and started again at its place."""

    kill: Callable[[], object]
    restart: Callable[[], object]


@pytest.fixture
def prefill(request: pytest.FixtureRequest, pair: Pair) -> Mortal:
    """The prefill engine of the pair."""
    if "sglang" in request.node.callspec.id:
        servers: Servers = request.getfixturevalue("sglang_servers")
        return Mortal(servers.get("prefill").kill, lambda: servers.get("prefill"))
    embedded: EmbeddedPair = request.getfixturevalue("embedded_pair")
    return Mortal(embedded.kill_prefill, embedded.start_prefill)


@pytest.fixture
def decode_runs(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Callable[[], bool]]:
    """Whether the real decode server still runs. It is started anew for who needs it next."""
    if pair.kind == "sglang":
        _, decode = request.getfixturevalue("sglang_pair")
        yield decode.running
        decode.kill()
    else:
        yield lambda: True
