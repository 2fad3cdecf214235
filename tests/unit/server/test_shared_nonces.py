"""A nonce is spent once, whichever processes are shown it, and however often at the same time."""

import os
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.processes.shared_nonces import KEEP_S, SharedNonces


def test_a_nonce_counts_once_and_for_as_long_as_a_token_is_valid() -> None:
    with closing(SharedNonces(64)) as nonces:
        assert nonces.spend("a", 1000.0) is True
        for later_s in (0.0, 1.0, KEEP_S / 2, KEEP_S):
            assert nonces.spend("a", 1000.0 + later_s) is False
        assert nonces.spend("a", 1000.0 + 3 * KEEP_S) is True


def test_a_clock_that_goes_back_brings_no_nonce_back() -> None:
    """Another process has read the time before it waited for the lock, or its clock was put back."""
    with closing(SharedNonces(64)) as nonces:
        assert nonces.spend("a", 2 * KEEP_S + 1.0) is True
        assert nonces.spend("b", 2 * KEEP_S - 0.1) is True
        assert nonces.spend("c", 0.0) is True
        assert [nonces.spend(name, 2 * KEEP_S + 2.0) for name in "abc"] == [False] * 3


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, KEEP_S / 4)), max_size=80))
def test_it_answers_like_a_set_with_times(steps: list[tuple[int, float]]) -> None:
    seen, now = dict[int, float](), 1000.0
    with closing(SharedNonces(64)) as nonces:
        for number, passed_s in steps:
            now += passed_s
            answer = nonces.spend(str(number), now)
            if number in seen and now - seen[number] <= KEEP_S:
                assert answer is False
            elif number not in seen or now - seen[number] > 2 * KEEP_S:
                assert answer is True
            if answer:
                seen[number] = now


def test_with_no_room_nothing_is_taken() -> None:
    with closing(SharedNonces(64)) as nonces:
        assert [nonces.spend(str(number), 0.0) for number in range(60)] == [True] * 48 + [None] * 12
        assert nonces.spend("0", 0.0) is False
        assert nonces.spend("59", 10 * KEEP_S) is True


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_of_processes_that_are_shown_the_same_nonces_each_is_taken_by_one() -> None:
    nonces = SharedNonces(4096)
    read, write = os.pipe()
    children = []
    for _ in range(3):
        pid = os.fork()
        if not pid:
            taken = [number for number in range(500) if nonces.spend(str(number), 5.0)]
            os.write(write, b"".join(number.to_bytes(2, "big") for number in taken))
            os._exit(0)
        children.append(pid)
    os.close(write)
    for pid in children:
        os.waitpid(pid, 0)
    nonces.close()
    with os.fdopen(read, "rb") as said:
        text = said.read()
    taken = sorted(int.from_bytes(text[at : at + 2], "big") for at in range(0, len(text), 2))
    assert taken == list(range(500))
