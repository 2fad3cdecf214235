"""The recording of OpenCode in which the date changes, sent to an embedded fleet with and without `repair="safe"`."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.subjects.copies import CopiedFleet
from warmroute import OpenAI
from warmroute_lab.fleet import FleetOptions, LocalFleet
from warmroute_lab.recordings import load_recordings

MASKED = {
    "Mabiz's pose: Bif Vog 21 2026": "Today's date: Sat Nov 21 2026",
    "Mabiz's pose: Pub Vog 20 2026": "Today's date: Fri Nov 20 2026",
}
"""The date line as it is in the recording, whose prose is masked, and as OpenCode wrote it."""

CHANGED = 5
"""The request after the date has changed."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    folder = tmp_path_factory.mktemp("date")
    with CopiedFleet(folder, folder / "up", FleetOptions(speed=100)) as made:
        yield made


def bodies() -> list[tuple[int, dict[str, Any]]]:
    [recording] = [found for found in load_recordings() if found.name == "oc_date"]
    found = []
    for request in recording.requests[1:CHANGED]:
        first, *rest = request.body["messages"]
        text = first["content"]
        for masked, written in MASKED.items():
            text = text.replace(masked, written)
        body = {name: request.body[name] for name in ("model", "tools", "tool_choice")}
        found.append((request.n, {**body, "messages": [{**first, "content": text}, *rest], "max_tokens": 1}))
    return found


def cached_tokens(fleet: LocalFleet, session: str, repair: str | None) -> tuple[int, int]:
    """Prompt and cached tokens of the request after the change."""
    client = OpenAI(
        base_url=fleet.proxies["east"].base_url, api_key=fleet.api_key, session=session, repair=repair, guard="warn"
    )
    with client, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, body in bodies():
            answer = client.chat.completions.create(**body)
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0


def test_a_frozen_date_keeps_the_prompt_cached(fleet: LocalFleet) -> None:
    assert cached_tokens(fleet, "plain", None) == (7819, 7424)
    assert cached_tokens(fleet, "safe", "safe") == (7819, 7744)
