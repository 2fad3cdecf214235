"""How much of each prompt could have been cached: the yardstick for the hit ratio.

The ideal of a request is the longest prefix that it shares with an earlier request, in whole pages of the engine. The
last token is never cached: the engine must compute it to sample the next one. *session* compares with earlier requests
of the same recording, as if one worker with endless memory served each session. *shared* compares with all earlier
requests of the tenant, as if one cache served all. Requests to different models share nothing.

Pages are compared by chained keys: the longest shared prefix is the number of leading keys that were seen before. So
the time is linear in the length of the prompts.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from warmroute_lab.engine.model.prompt import page_keys, render, tokens


class Prompt(NamedTuple):
    """A prompt as the embedded engine counts it."""

    recording: str
    tokens: int
    page_keys: tuple[int, ...]


class Ideal(NamedTuple):
    """Tokens of one prompt that could have been cached."""

    session: int
    shared: int


def prompt_of(recording: str, body: Mapping[str, Any], page_size: int) -> Prompt:
    rendered = render(body)
    keys = page_keys(rendered, page_size, str(body["model"]).encode())
    return Prompt(recording, tokens(rendered), tuple(keys))


def ideals(prompts: Iterable[Prompt], page_size: int) -> list[Ideal]:
    by_session: dict[str, set[int]] = {}
    by_all: set[int] = set()
    found = []
    for prompt in prompts:
        seen = by_session.setdefault(prompt.recording, set())
        found.append(Ideal(_cached(prompt, seen, page_size), _cached(prompt, by_all, page_size)))
        seen.update(prompt.page_keys)
        by_all.update(prompt.page_keys)
    return found


def _cached(prompt: Prompt, seen: set[int], page_size: int) -> int:
    most = (prompt.tokens - 1) // page_size
    pages = 0
    for key in prompt.page_keys[:most]:
        if key not in seen:
            break
        pages += 1
    return pages * page_size
