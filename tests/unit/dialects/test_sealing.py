"""Sealed reasoning: opened by its own key alone, the same each time, in either alphabet."""

import base64
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.base.sealing import Seal

SEAL = Seal(b"k" * 32)


@given(st.text(max_size=200))
def test_what_is_sealed_opens(text: str) -> None:
    sealed = SEAL.seal(text)
    assert SEAL.open(sealed) == text
    assert SEAL.seal(text) == sealed
    standard = base64.b64encode(base64.urlsafe_b64decode(sealed)).decode()
    for other in (standard, sealed.rstrip("="), standard.rstrip("=")):
        assert SEAL.open(other) == text
    assert pickle.loads(pickle.dumps(SEAL)).open(sealed) == text


@given(st.text(min_size=1, max_size=50), st.integers(0, 10_000), st.integers(1, 255))
def test_what_was_changed_does_not_open(text: str, at: int, by: int) -> None:
    data = bytearray(base64.urlsafe_b64decode(SEAL.seal(text)))
    data[at % len(data)] ^= by
    assert SEAL.open(base64.urlsafe_b64encode(bytes(data)).decode()) is None


@pytest.mark.parametrize("sealed", ["", "A", "gAAAA", "\x00", "é", "AQ", "AAAA" * 100, "not base64!"])
def test_what_is_no_seal_does_not_open(sealed: str) -> None:
    assert SEAL.open(sealed) in (None, "")


def test_another_key_does_not_open() -> None:
    assert Seal(b"o" * 32).open(SEAL.seal("thought")) is None
