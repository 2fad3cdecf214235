"""The bounded maps of lineages and sessions."""

from dataclasses import replace

from warmroute_proxy.core.affinity import Affinity, Last

LAST = Last(("w1",), "east", 4000, 1000, 20, 0, 1, 0)


def test_a_lineage_is_remembered_by_its_last_turn_and_its_session_by_region() -> None:
    affinity = Affinity()
    affinity.remember(1, LAST, session=7)
    affinity.remember(1, replace(LAST, turn=2, region="west"), session=7)
    assert affinity.last(1) == replace(LAST, turn=2, region="west")
    assert affinity.home(7) == "west"


def test_a_session_without_a_home_of_its_own_gets_none() -> None:
    affinity = Affinity()
    affinity.remember(1, LAST, session=None)
    assert affinity.last(1) == LAST
    assert affinity.sessions == 0


def test_the_least_recently_served_goes_first() -> None:
    affinity = Affinity(max_entries=3)
    for key in (1, 2, 3):
        affinity.remember(key, LAST, session=10 * key)
    affinity.remember(1, LAST, session=10)
    affinity.remember(4, LAST, session=40)
    assert [key for key in (1, 2, 3, 4) if affinity.last(key)] == [1, 3, 4]
    assert [key for key in (10, 20, 30, 40) if affinity.home(key)] == [10, 30, 40]
    assert (affinity.lineages, affinity.sessions) == (3, 3)
