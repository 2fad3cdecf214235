"""Bootstrap rooms: a decode engine mixes up or hangs requests that share one, and cannot take room 0."""

import itertools

import pytest

from warmroute_proxy.server.engines.engines import Ids
from warmroute_proxy.server.engines.server_info import MAX_DP_RANKS
from warmroute_proxy.server.intake.intake import MAX_PROMPTS


def test_requests_of_many_processes_share_no_room() -> None:
    taken: set[int] = set()
    rooms = 0
    for process in [Ids() for _ in range(50)]:
        for number in range(200):
            prompts = 1 + number % 7
            first = process.bootstrap_room(number % 3, 3, prompts)
            assert first % 3 == number % 3
            taken |= set(range(first, first + prompts))
            rooms += prompts
    assert len(taken) == rooms
    assert 0 not in taken
    assert max(taken) < 2**63


@pytest.mark.parametrize("random", [b"\x00" * 3, b"\xff" * 3])
def test_the_first_and_the_last_room_are_in_range(random: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda count: random[:1] * count)
    ids = Ids()
    rooms = [ids.bootstrap_room(rank, MAX_DP_RANKS, MAX_PROMPTS) for rank in range(MAX_DP_RANKS)]
    assert min(rooms) > 0
    assert max(rooms) + MAX_PROMPTS < 2**63
    assert [room % MAX_DP_RANKS for room in rooms] == list(range(MAX_DP_RANKS))


def test_rooms_do_not_meet_where_the_largest_requests_follow_each_other() -> None:
    ids = Ids()
    rooms = sorted(ids.bootstrap_room(number % MAX_DP_RANKS, MAX_DP_RANKS, MAX_PROMPTS) for number in range(500))
    assert all(after - before >= MAX_PROMPTS for before, after in itertools.pairwise(rooms))
