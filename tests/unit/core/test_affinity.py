"""The bounded maps of lineages, threads and sessions."""

from msgspec.structs import replace

from warmroute_proxy.core.cache.affinity import MAX_FORKS, Affinity
from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.core.prompt.chain import Chain

LAST = SettledTurn(("w1",), "east", 4000, 1000, 20, 0, 1, 0, tip=14)
CHAIN = Chain([11, 12, 13, 14], [1000, 2000, 3000, 4000])


def longer(tip: int, chain: Chain = CHAIN) -> Chain:
    """A prompt that continues `chain` by a message."""
    return Chain([*chain.hashes, tip], [*chain.ends, chain.ends[-1] + 500])


def test_a_lineage_is_remembered_by_its_last_turn_and_its_session_by_region() -> None:
    affinity = Affinity()
    affinity.remember(1, CHAIN, LAST, session=7)
    second = replace(LAST, turn=2, region="west", prompt_bytes=4500, tip=20)
    affinity.remember(1, longer(20), second, session=7)
    assert affinity.last_settled(1, longer(21, longer(20)), 3) == second
    assert affinity.home(7) == "west"


def test_only_the_longest_lineage_of_a_session_moves_its_home() -> None:
    affinity = Affinity()
    affinity.remember(1, CHAIN, LAST, session=7)
    affinity.remember(2, Chain([91], [500]), replace(LAST, region="west", prompt_bytes=500, tip=91), session=7)
    assert affinity.home(7) == "east"
    affinity.remember(1, longer(20), replace(LAST, region="west", prompt_bytes=4500, tip=20), session=7)
    assert affinity.home(7) == "west"


def test_a_turn_of_another_region_replaces_the_one_that_it_continues() -> None:
    affinity = Affinity()
    affinity.remember(1, CHAIN, LAST, session=7)
    later = replace(LAST, region="west", workers=(), prompt_bytes=4500, prompt_tokens=None, turn=2, tip=20)
    affinity.observe(RegionalTurn(1, 7, None, 5, 14, later))
    assert affinity.last_settled(1, longer(21, longer(20)), 3) == later
    assert affinity.last_settled(1, longer(22), 2) == later  # a fork from the turn before: it is where the newest is
    assert affinity.home(7) == "west"


def test_counts_of_a_turn_are_kept_whichever_report_of_it_comes_last() -> None:
    affinity = Affinity()
    counted = replace(LAST, region="west")
    affinity.observe(RegionalTurn(1, None, None, 4, 0, counted))
    affinity.observe(RegionalTurn(1, None, None, 4, 0, replace(counted, prompt_tokens=None)))
    assert affinity.last_settled(1, longer(20), 2) == counted
    affinity.remember(1, CHAIN, replace(counted, workers=("region:west",), prompt_tokens=None), session=None)
    assert affinity.last_settled(1, longer(20), 2) == counted


def test_two_conversations_of_one_lineage_are_told_apart_by_their_prefix() -> None:
    affinity = Affinity()
    affinity.remember(1, CHAIN, LAST, session=None)
    other = Chain([11, 12, 93], [1000, 2000, 2700])
    affinity.remember(1, other, replace(LAST, prompt_bytes=2700, tip=93, prompt_tokens=600), session=None)
    continues_first = affinity.last_settled(1, longer(15), 2)
    continues_other = affinity.last_settled(1, longer(94, other), 2)
    assert continues_first is not None
    assert continues_other is not None
    assert (continues_first.prompt_tokens, continues_other.prompt_tokens) == (1000, 600)
    third = Chain([11, 12, 55], [1000, 2000, 2500])
    assert affinity.last_settled(1, third, 1) is None  # a third conversation begins
    assert (
        affinity.last_settled(1, third, 2) == continues_other
    )  # one under way was rewritten: compared with the newest


def test_forks_of_a_lineage_are_bounded() -> None:
    affinity = Affinity()
    chains = [Chain([n], [100]) for n in range(1, MAX_FORKS + 3)]
    for chain in chains:
        affinity.remember(1, chain, replace(LAST, prompt_bytes=100, tip=chain.hashes[0]), session=None)
    assert [affinity.last_settled(1, longer(99, chain), 1) is not None for chain in chains] == [False] * 2 + [
        True
    ] * MAX_FORKS


def test_a_session_without_a_home_of_its_own_gets_none() -> None:
    affinity = Affinity()
    affinity.remember(1, CHAIN, LAST, session=None)
    assert affinity.last_settled(1, CHAIN, 1) == LAST
    assert affinity.sessions == 0


def test_the_least_recently_served_goes_first() -> None:
    affinity = Affinity(max_entries=3)
    for key in (1, 2, 3):
        affinity.remember(key, CHAIN, LAST, session=10 * key)
    affinity.remember(1, CHAIN, LAST, session=10)
    affinity.remember(4, CHAIN, LAST, session=40)
    assert [key for key in (1, 2, 3, 4) if affinity.last_settled(key, CHAIN, 1)] == [1, 3, 4]
    assert [key for key in (10, 20, 30, 40) if affinity.home(key)] == [10, 30, 40]
    assert (affinity.lineages, affinity.sessions) == (3, 3)
