"""Recorded sessions whose every request enters at a random region find their caches, with the SDK and without.

Each seed is a model of its own, so that no seed finds what another one has cached; a session's ideal is that of one
worker that remembers everything (`warmroute_lab.demo.ideal`). Turns are sent in order, one at a time: a turn that finds
its worker busy goes to another one where that is cheaper, and how long others are under way depends on the machine.
Agents take longer between two turns than an announcement to the other region. So a turn is sent once the other region
has confirmed the one before it, however slow the machine is.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.copies import CopiedFleet
from tests.subjects.processes import PLAIN, until
from warmroute.contract.receipt import cached_tokens
from warmroute_cli import state
from warmroute_lab.demo import drive
from warmroute_lab.demo.audit import ClientTurn
from warmroute_lab.demo.played import ideal_by_label
from warmroute_lab.demo.results import Pass
from warmroute_lab.fleet import MODELS, FleetOptions, LocalFleet
from warmroute_lab.recordings import RecordedRequest, RecordedSession, load_recordings

ALLOWED_GAP = 0.01
ANNOUNCED = "warmroute_announcements_total{"

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    folder = tmp_path_factory.mktemp("roaming").resolve()
    options = FleetOptions(speed=100.0, delay_ms=5.0)
    with state.locked_state(folder / "state") as kept, CopiedFleet(kept, folder / "run", options) as found:
        yield found


def of_seed(recording: RecordedSession, seed: int) -> RecordedSession:
    """The recording for a model and with sessions of its own."""
    headers = ("session", "affinity", "thread", "agent-id")

    def own(request: RecordedRequest) -> RecordedRequest:
        named = {
            name: f"{value}-{seed}" if any(word in name.lower() for word in headers) else value
            for name, value in request.headers.items()
        }
        body = {**request.body, "model": MODELS[seed % len(MODELS)]}
        for field in ("prompt_cache_key", "promptCacheKey"):
            if field in body:
                body[field] = f"{body[field]}-{seed}"
        return replace(request, headers=named, body=body)

    return replace(recording, requests=tuple(map(own, recording.requests)))


def metrics(fleet: LocalFleet, operator: httpx.Client, region: str) -> str:
    """The page of a region's proxy."""
    headers = {"authorization": f"Bearer {state.admin_key(fleet.state_dir)}"}
    return operator.get(f"{fleet.proxies[region].admin_url}/metrics", headers=headers).text


def all_confirmed(fleet: LocalFleet, operator: httpx.Client, turn: ClientTurn) -> bool:
    """Whether the other region knows all that has been announced where a turn came in and where it was served."""
    served = {turn.usage["warmroute"]["region"]} if turn.usage is not None else set()
    pages = [metrics(fleet, operator, region) for region in served | {turn.ingress}]
    return all("\nwarmroute_announcements_waiting 0\n" in page for page in pages)


def gaps(fleet: LocalFleet, recordings: Sequence[RecordedSession], seed: int) -> dict[str, float]:
    """How far the hit ratio of each harness stays below its ideal."""
    recordings = [of_seed(recording, seed) for recording in recordings]
    base_urls = {region: proxy.base_url for region, proxy in fleet.proxies.items()}
    target = drive.Target(base_urls, fleet.api_key, seed, 0.0)
    with httpx.Client(verify=PLAIN, timeout=seconds(10)) as operator:

        def on_turn(turn: ClientTurn) -> None:
            until(lambda: all_confirmed(fleet, operator, turn), "all announcements are confirmed")

        turns = asyncio.run(drive.drive(recordings, target, 1, on_turn))
    assert [turn.error for turn in turns if turn.error] == []
    ideal = ideal_by_label(recordings, Pass(turns, [], [], []))
    by_harness: dict[str, list[ClientTurn]] = defaultdict(list)
    for turn in turns:
        by_harness[turn.harness].append(turn)
    found = {}
    for harness, own in by_harness.items():
        usages = [turn.usage for turn in own if turn.usage is not None]
        assert len(usages) == len(own)
        prompt = sum(usage["prompt_tokens"] for usage in usages)
        most = sum(ideal[turn.label].session for turn in own)
        found[harness] = (most - sum(map(cached_tokens, usages))) / prompt
    return found


def too_wide(gaps_of: dict[str, float]) -> dict[str, float]:
    return {name: round(gap, 4) for name, gap in gaps_of.items() if gap > ALLOWED_GAP}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_recorded_sessions_that_roam_reach_their_ideal(fleet: LocalFleet, seed: int) -> None:
    assert too_wide(gaps(fleet, load_recordings(), seed)) == {}
    with httpx.Client(verify=PLAIN, timeout=seconds(10)) as operator:
        for region in fleet.proxies:
            lines = [line.rsplit(" ", 1) for line in metrics(fleet, operator, region).splitlines()]
            counts = {name.split('"')[1]: float(value) for name, value in lines if name.startswith(ANNOUNCED)}
            assert counts["lost"] == 0, counts
            assert min(counts["sent"], counts["received"]) > 0


# Variants: what one session sends beside its main agent, between its turns.


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def words(name: str, count: int) -> str:
    return " ".join(f"{name}{number}" for number in range(count))


def sub_agent(recording: RecordedSession, name: str) -> list[RecordedRequest]:
    """Three turns of an agent that the main one starts, with tools and a session or a thread of its own."""
    first = recording.requests[0]
    session = next((value for key, value in first.headers.items() if key.lower() == "x-session-affinity"), None)
    headers = dict(first.headers)
    if session is not None:
        headers |= {"x-session-affinity": name, "x-session-id": name, "x-parent-session-id": session}
    messages = [message("system", words(f"{name}-system", 900)), message("user", words(f"{name}-task", 200))]
    found = []
    for turn in range(3):
        found.append(RecordedRequest(0, headers, {**first.body, "tools": [], "messages": list(messages)}))
        messages += [message("assistant", f"step {turn}"), message("user", words(f"{name}-{turn}", 300))]
    return found


def with_side_lineages(recording: RecordedSession) -> RecordedSession:
    """The recording with sub-agents, a compaction, a resume and a fork between its turns."""
    turns = list(recording.requests)
    agents = [sub_agent(recording, f"{recording.name}-agent{number}") for number in range(2)]
    mixed: list[RecordedRequest] = []
    for number, request in enumerate(turns):
        mixed.append(request)
        if number % 2 == 0 and agents:
            mixed.append(agents[number // 2 % 2].pop(0))
            agents = [agent for agent in agents if agent] if all(agents) else []
        if number == len(turns) // 2:
            messages = request.body["messages"]
            mixed.append(
                replace(request, body={**request.body, "messages": [*messages, message("user", "Summarise.")]})
            )
            mixed.append(replace(request, body={**request.body, "messages": [*messages, message("user", "Or else?")]}))
        if number == len(turns) - 1:
            early = turns[number // 2].body["messages"]
            fork = [*early, message("assistant", "Done."), message("user", words("another way", 50))]
            mixed.append(replace(request, body={**request.body, "messages": fork}))
            mixed.append(replace(request, body={**request.body, "messages": [*fork, message("user", "Go on.")]}))
    return replace(recording, requests=tuple(replace(each, n=number) for number, each in enumerate(mixed)))


def test_side_lineages_between_the_turns_take_nobody_along(fleet: LocalFleet) -> None:
    names = ("aider", "codex", "oc_main", "oc_prune")
    recordings = [with_side_lineages(each) for each in load_recordings() if each.name in names]
    assert too_wide(gaps(fleet, recordings, 11)) == {}
