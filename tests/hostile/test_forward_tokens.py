"""A forward token that somebody has recorded is of no use: not again, not later, not while clocks are set."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.processes.shared_nonces import SharedNonces
from warmroute_proxy.server.regions.forward_claim import CLOCKS_APART_S, VALID_S, Forwards

SECRETS = Secrets(b"k" * 48)
BODY = "00" * 32


class Clock:
    """Two clocks: one that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.steady_s = 1000.0
        self.offset_s = 1_795_000_000.0

    def unix_s(self) -> float:
        return self.steady_s + self.offset_s

    def steady(self) -> float:
        return self.steady_s


class Regions:
    """East signs, west checks."""

    def __init__(self, nonces: SharedNonces | None = None) -> None:
        self.east, self.west = Clock(), Clock()
        numbers = itertools.count()
        signer = Forwards(SECRETS, "east", self.east.unix_s, lambda _: f"{next(numbers)}")
        self._signer = signer
        self._nonces = nonces
        self.restart()

    def restart(self) -> None:
        """Of west."""
        self._checker = Forwards(SECRETS, "west", self.west.unix_s, lambda _: "", self._nonces, self.west.steady)

    def token(self, timeout_s: float = 600.0) -> str:
        return self._signer.sign("t", "t", "wr-1", "west", BODY, timeout_s)

    def takes(self, token: str) -> bool:
        try:
            self._checker.check(token, BODY)
        except Refusal as refusal:
            assert refusal.code in {"invalid_forward", "deadline_exceeded"}
            return False
        return True

    def wait(self, seconds: float) -> None:
        self.east.steady_s += seconds
        self.west.steady_s += seconds


def test_it_is_taken_once_and_soon() -> None:
    regions = Regions()
    token = regions.token()
    assert [regions.takes(token), regions.takes(token)] == [True, False]
    late = regions.token()
    regions.wait(VALID_S + 1)
    assert not regions.takes(late)
    hurried = regions.token(timeout_s=1.0)
    regions.wait(1.0 + CLOCKS_APART_S + 0.1)
    assert not regions.takes(hurried)


@pytest.mark.parametrize("back_s", [30.0, 600.0, 86_400.0])
def test_a_clock_that_is_put_back_brings_none_back(back_s: float) -> None:
    regions = Regions()
    token = regions.token()
    assert regions.takes(token)
    regions.wait(back_s)  # its nonce may be dropped meanwhile
    regions.takes(regions.token())
    regions.west.offset_s -= back_s
    assert not regions.takes(token)


def test_a_clock_that_jumps_ahead_and_back_brings_none_back_and_forwards_go_on() -> None:
    regions = Regions()
    token = regions.token()
    assert regions.takes(token)
    regions.west.offset_s += 86_400.0
    assert not regions.takes(regions.token())  # from a clock that is not in step
    regions.wait(1.0)
    regions.west.offset_s -= 86_400.0
    assert not regions.takes(token)
    assert regions.takes(regions.token())


@given(
    st.lists(
        st.tuples(st.sampled_from(["wait", "set west", "set east", "forward", "replay"]), st.floats(-2000.0, 2000.0)),
        max_size=60,
    ),
    st.booleans(),
)
def test_no_token_is_taken_twice_whatever_clocks_do(steps: list[tuple[str, float]], shared: bool) -> None:
    nonces = SharedNonces(1024) if shared else None
    regions = Regions(nonces)
    taken: list[str] = []
    for step, value in steps:
        if step == "wait":
            regions.wait(abs(value) / 10)
        elif step == "set west":
            regions.west.offset_s += value
        elif step == "set east":
            regions.east.offset_s += value
        elif step == "forward":
            token = regions.token()
            if regions.takes(token):
                taken.append(token)
        else:
            assert not any(regions.takes(token) for token in taken)
    if nonces is not None:
        nonces.close()


@pytest.mark.parametrize("ago_s", [0.0, CLOCKS_APART_S + 0.1, VALID_S - 0.1])
def test_a_start_takes_none_of_long_before(ago_s: float) -> None:
    """It knows no nonces: what was issued until just before may have been used. Later ones are taken."""
    regions = Regions()
    token = regions.token()
    regions.wait(ago_s)
    regions.restart()
    assert regions.takes(token) is (ago_s <= CLOCKS_APART_S)
    assert regions.takes(regions.token())


def test_a_start_with_a_clock_that_is_ahead_refuses_for_a_minute_at_most() -> None:
    regions = Regions()
    regions.west.offset_s += 86_400.0
    regions.restart()
    regions.west.offset_s -= 86_400.0
    assert not regions.takes(regions.token())
    regions.wait(2 * VALID_S + 1)
    assert regions.takes(regions.token())
