"""The packaged recordings of real agents: every break in them is found, and nothing is found where they only append."""

import pytest

from warmroute.guard.causes import Cause
from warmroute.guard.memory import Memory
from warmroute_lab.recordings import RecordedSession, load_recordings

BREAKS: dict[str, list[tuple[int, Cause]]] = {
    "aider": [(number, Cause.HISTORY_EDITED) for number in (2, 4, 5, 6)],
    "claude": [(12, Cause.SYSTEM)],
    "oc_date": [(5, Cause.SYSTEM)],
    "oc_prune": [(17, Cause.HISTORY_PRUNED)],
}
"""Request and cause. Prose is masked, so a date is a changed system prompt here; the date itself is in test_repair."""

SESSION_HEADERS = ("x-session-affinity", "x-claude-code-session-id", "session-id")


def found_in(recording: RecordedSession) -> list[tuple[int, Cause]]:
    memory, found = Memory(), []
    for request in recording.requests:
        headers = {name.lower(): value for name, value in request.headers.items()}
        session = next((headers[name] for name in SESSION_HEADERS if name in headers), recording.name)
        reading = memory.read(session, request.body)
        memory.keep(session, reading)
        if reading.broken is not None:
            found.append((request.n, reading.broken.cause))
    return found


@pytest.mark.parametrize("recording", load_recordings(), ids=lambda recording: recording.name)
def test_breaks_are_found_and_nothing_else(recording: RecordedSession) -> None:
    assert found_in(recording) == BREAKS.get(recording.name, [])
