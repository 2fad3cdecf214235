"""The plan of a replay: which way turns enter is drawn from the seed and nothing else."""

from warmroute.contract.identity import session_of
from warmroute_lab.demo.drive import NAMED_SESSIONS, THROUGH_SDK, ingresses
from warmroute_lab.recordings import load_recordings

REGIONS = ("east", "west")


def test_a_roaming_session_enters_through_both_regions() -> None:
    plan = ingresses("oc_main", 12, REGIONS, 1)
    assert set(plan) == set(REGIONS)
    assert plan == ingresses("oc_main", 12, REGIONS, 1)
    assert plan != ingresses("oc_main", 12, REGIONS, 2)


def test_half_of_the_recordings_go_through_the_sdk_and_each_way_of_naming_a_session_is_there() -> None:
    recordings = load_recordings()
    assert {recording.name for recording in recordings} > THROUGH_SDK
    assert len(THROUGH_SDK) * 2 == len(recordings)
    silent = set()
    for recording in recordings:
        request = recording.requests[0]
        if session_of({name.lower(): value for name, value in request.headers.items()}, request.body) is None:
            silent.add(recording.name)
    assert (
        len(silent & NAMED_SESSIONS) == len((silent & THROUGH_SDK) - NAMED_SESSIONS) == len(silent - THROUGH_SDK) == 1
    )
