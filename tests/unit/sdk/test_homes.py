"""Where the lineages of a session are at home, as its client knows it."""

from collections.abc import Mapping
from typing import Any

from warmroute.contract.homes import Homes, Lineage, lineage_of

URL = "http://server/v1"
MAIN = "You are an agent."
TITLE = "You name conversations."


def lineage(session: str, system: str, messages: int = 1, caller: Mapping[str, str] | None = None) -> Lineage:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "system", "content": system}]}
    body["messages"] += [{"role": "user", "content": str(number)} for number in range(messages)]
    found = lineage_of(URL, session, caller or {}, body)
    assert found is not None
    return found


def test_a_side_lineage_that_is_served_elsewhere_takes_no_other_with_it() -> None:
    homes = Homes()
    homes.answered(lineage("s", MAIN, 3), "east")
    homes.answered(lineage("s", TITLE), "west")
    assert homes.of(lineage("s", MAIN, 5)) == "east"
    assert homes.of(lineage("s", TITLE)) == "west"


def test_a_new_lineage_begins_where_the_longest_of_its_session_is() -> None:
    homes = Homes()
    homes.answered(lineage("s", TITLE), "west")
    assert homes.of(lineage("s", MAIN)) == "west"
    homes.answered(lineage("s", MAIN, 4), "east")
    homes.answered(lineage("s", TITLE), "west")
    assert homes.of(lineage("s", "You explore files.")) == "east"


def test_a_session_that_another_one_started_begins_where_that_is() -> None:
    homes = Homes()
    homes.answered(lineage("s", MAIN), "west")
    assert homes.of(lineage("child", "You explore.", 1, {"x-parent-session-id": "s"})) == "west"
    assert homes.of(lineage("stranger", MAIN)) is None


def test_a_date_in_the_system_prompt_makes_no_other_lineage() -> None:
    homes = Homes()
    homes.answered(lineage("s", f"{MAIN} Today is 2026-03-01.", 2), "west")
    homes.answered(lineage("s", TITLE, 4), "east")
    assert homes.of(lineage("s", f"{MAIN} Today is 2026-03-02.", 3)) == "west"


def test_agents_of_one_session_have_homes_of_their_own() -> None:
    homes = Homes()
    homes.answered(lineage("s", MAIN, 2, {"x-claude-code-agent-id": "a"}), "west")
    homes.answered(lineage("s", MAIN, 2, {"x-claude-code-agent-id": "b"}), "east")
    assert homes.of(lineage("s", MAIN, 3, {"x-claude-code-agent-id": "a"})) == "west"


def test_the_least_recently_used_home_goes_first() -> None:
    homes = Homes(max_homes=3)
    for session in ("a", "b", "c"):
        homes.answered(lineage(session, MAIN), "east")
    homes.answered(lineage("a", MAIN), "east")
    homes.answered(lineage("d", MAIN), "east")
    assert [session for session in "abcd" if homes.of(lineage(session, MAIN))] == ["a", "c", "d"]


def test_ten_thousand_homes_are_kept() -> None:
    homes = Homes()
    for number in range(10_001):
        homes.answered(lineage(str(number), MAIN), "east")
    assert homes.of(lineage("0", MAIN)) is None
    assert homes.of(lineage("1", MAIN)) == "east"
