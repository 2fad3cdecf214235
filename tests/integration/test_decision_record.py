"""The record of a live proxy gives every decision again: the demo's traffic through two real proxies, both recorded."""

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.machine import seconds
from tests.subjects.copies import CopiedFleet
from tests.subjects.processes import until
from warmroute_cli.replay.replay import verify_records
from warmroute_cli.state import locked_state, secret_file
from warmroute_lab.demo.drive import Target, drive
from warmroute_lab.fleet import REGIONS, FleetOptions, Proxy
from warmroute_lab.recordings import load_recordings
from warmroute_lab.replay.loaders import records
from warmroute_lab.replay.record import verify
from warmroute_lab.replay.trace import TraceError
from warmroute_proxy.core.replicas.record import (
    MAGIC,
    Closed,
    Dispatched,
    Ended,
    Failed,
    Frame,
    Frames,
    Placed,
    RecordedCall,
    RecordError,
    frame,
)
from warmroute_proxy.server.base.secrets import Secrets, load_secret

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]

HARNESSES = ("aider", "codex", "mini-swe-agent")
TURNS = 6 + 12 + 9


class RecordedFleet(CopiedFleet):
    """The demo's fleet, with a record at each proxy."""

    def record(self, region: str) -> Path:
        return self.run_dir / f"{region}.record"

    def kill(self, region: str) -> None:
        os.kill(self._proxy_children[REGIONS.index(region)].pid, signal.SIGKILL)

    def admin_key(self) -> str:
        return Secrets(load_secret(secret_file(self.state_dir), os.environ)).admin_key()


class Run(NamedTuple):
    """What is left of a recorded run: the records, and the decisions as each live proxy showed them, oldest first."""

    records: dict[str, Path]
    shown: dict[str, list[dict[str, Any]]]
    api_key: str


def frames(path: Path) -> list[Frame]:
    with path.open("rb") as file:
        return list(Frames(file.read))


def calls(path: Path) -> list[RecordedCall]:
    return [found.call for found in frames(path)]


def placed(path: Path) -> list[Placed]:
    return [call for call in calls(path) if isinstance(call, Placed)]


def ended(path: Path) -> list[Ended]:
    return [call for call in calls(path) if isinstance(call, Ended)]


def shown(proxy: Proxy, admin_key: str) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        f"{proxy.admin_url}/admin/decisions?limit=1000", headers={"authorization": f"Bearer {admin_key}"}
    )
    with urllib.request.urlopen(request, timeout=seconds(10)) as response:
        found: list[dict[str, Any]] = json.load(response)["decisions"]
    return found[::-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The demo's drive; then one proxy is stopped, and the other killed once its record has the ends of all turns."""
    folder = tmp_path_factory.mktemp("recorded").resolve()
    fleet = RecordedFleet(folder, folder / "run", FleetOptions(speed=50.0, record=True))
    with locked_state(folder), fleet:
        urls = {region: proxy.base_url for region, proxy in fleet.proxies.items()}
        target = Target(urls, fleet.api_key, seed=1, think_s=0.02)
        turns = asyncio.run(drive(load_recordings(HARNESSES), target, 2, lambda _turn: None))
        assert [turn.error for turn in turns] == [None] * TURNS
        seen = {region: shown(proxy, fleet.admin_key()) for region, proxy in fleet.proxies.items()}
        west = fleet.record("west")
        until(lambda: len(ended(west)) == len(seen["west"]), "all of west's decisions, and their ends, are written")
        fleet.kill("west")
        fleet.stop_proxies()
    return Run({region: fleet.record(region) for region in REGIONS}, seen, fleet.api_key)


@pytest.mark.parametrize("region", REGIONS)
def test_a_record_gives_every_decision_again(run: Run, region: str) -> None:
    verdict = verify(run.records[region])
    assert verdict.decisions == len(run.shown[region]) > TURNS / 4
    assert (verdict.differing, verdict.first_difference) == (0, None)


@pytest.mark.parametrize("region", REGIONS)
def test_what_is_recorded_is_what_the_live_proxy_decided(run: Run, region: str) -> None:
    for call, live in zip(placed(run.records[region]), run.shown[region], strict=True):
        assert call.decision is not None
        names = [name for name in live if name not in {"id", "reasons"}]
        plain = json.loads(msgspec.json.encode(call.decision, enc_hook=list))
        assert {name: plain[name] for name in names} == {name: live[name] for name in names}
        assert [reason._asdict() for reason in call.decision.reasons] == live["reasons"]


def test_the_drive_decided_on_more_than_one_thing(run: Run) -> None:
    """Were all decisions alike, a playback that ignores its input would pass too."""
    decisions = [call.decision for region in REGIONS for call in placed(run.records[region]) if call.decision]
    assert {decision.kind for decision in decisions} == {"local", "forward"}
    assert len({decision.cache_worker for decision in decisions}) >= 4
    assert any(decision.predicted_cached_tokens for decision in decisions)
    assert len({reason.cost_s for decision in decisions for reason in decision.reasons}) > 1


def test_a_proxy_that_stops_ends_its_record_and_one_that_is_killed_leaves_a_prefix(run: Run) -> None:
    stopped, killed = verify(run.records["east"]), verify(run.records["west"])
    assert (stopped.closed, stopped.cut_off) == ("the proxy stopped", None)
    assert killed.closed is None
    assert killed.cut_off is not None
    assert killed.cut_off.startswith("at byte ")


def texts_of(value: Any) -> Iterator[str]:
    """All strings in a JSON value, but those that name a model."""
    if isinstance(value, str):
        yield value
    for name, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if name != "model":
            yield from texts_of(item)


def test_a_record_holds_nothing_that_a_client_wrote(run: Run) -> None:
    """Neither texts of prompts, tools and metadata, nor headers, where session ids and keys are."""
    data = b"".join(path.read_bytes() for path in run.records.values())
    requests = [request for recording in load_recordings(HARNESSES) for request in recording.requests]
    written = {text for request in requests for text in texts_of(request.body)}
    written |= {value for request in requests for value in request.headers.values()} | {run.api_key}
    long = {text[:24].encode() for text in written if len(text) >= 10}
    assert len(long) > 50
    assert [text for text in long if text in data] == []
    assert b"wr-" not in data
    assert {path.stat().st_mode & 0o077 for path in run.records.values()} == {0}


def rewritten(path: Path, target: Path, change: Callable[[list[RecordedCall]], None]) -> Path:
    changed = calls(path)
    change(changed)
    target.write_bytes(MAGIC + b"".join(frame(call) for call in changed))
    return target


def double_the_prompts(changed: list[RecordedCall]) -> None:
    for at, call in enumerate(changed):
        if isinstance(call, Ended) and call.prompt_tokens:
            changed[at] = msgspec.structs.replace(call, prompt_tokens=2 * call.prompt_tokens)


def test_a_decision_that_comes_out_otherwise_is_named_with_its_term(run: Run, tmp_path: Path) -> None:
    def raise_a_cost(changed: list[RecordedCall]) -> None:
        at = [index for index, call in enumerate(changed) if isinstance(call, Placed)][3]
        call = changed[at]
        assert isinstance(call, Placed)
        assert call.decision is not None
        first, *rest = call.decision.reasons
        reasons = (first._replace(queue_s=first.queue_s + 1e-9), *rest)
        changed[at] = msgspec.structs.replace(call, decision=msgspec.structs.replace(call.decision, reasons=reasons))

    verdict = verify(rewritten(run.records["east"], tmp_path / "changed", raise_a_cost))
    assert verdict.differing == 1
    assert verdict.first_difference is not None
    assert verdict.first_difference.startswith("decision 4 (frame ")
    assert "reasons[0].queue_s was " in verdict.first_difference


def test_what_engines_reported_is_part_of_the_input(run: Run, tmp_path: Path) -> None:
    verdict = verify(rewritten(run.records["east"], tmp_path / "changed", double_the_prompts))
    assert 0 < verdict.differing <= verdict.decisions
    assert "prompt_tokens_est" in (verdict.first_difference or "") or "cached" in (verdict.first_difference or "")


def test_a_damaged_record_says_where(run: Run, tmp_path: Path) -> None:
    data = bytearray(run.records["east"].read_bytes())
    found = frames(run.records["east"])[20]
    data[found.offset + 30] ^= 1
    damaged = tmp_path / "damaged"
    damaged.write_bytes(data)
    with pytest.raises(RecordError, match=rf"damaged at byte {found.offset}, frame 21: the checksum is wrong"):
        verify(damaged)


def test_a_truncated_record_is_played_up_to_where_it_is_cut_off(run: Run, tmp_path: Path) -> None:
    *before, last = [entry for entry in frames(run.records["east"]) if isinstance(entry.call, Placed)]
    cut = tmp_path / "cut"
    cut.write_bytes(run.records["east"].read_bytes()[: last.offset + 100])
    verdict = verify(cut)
    assert (verdict.decisions, verdict.differing) == (len(before), 0)
    assert verdict.cut_off == f"at byte {last.offset + 100}, inside frame {last.number}"


def test_calls_that_cannot_follow_each_other_are_refused(run: Run, tmp_path: Path) -> None:
    def drop_dispatches(changed: list[RecordedCall]) -> None:
        changed[:] = [call for call in changed if not isinstance(call, Dispatched)]

    def end_early(changed: list[RecordedCall]) -> None:
        changed[:] = [Closed("too early")]

    with pytest.raises(RecordError, match=r"cannot be played at byte \d+, frame \d+ \("):
        verify(rewritten(run.records["east"], tmp_path / "a", drop_dispatches))
    with pytest.raises(RecordError, match=r"frame 1 is closed"):
        verify(rewritten(run.records["east"], tmp_path / "b", end_early))


def test_the_traffic_of_a_record_can_be_replayed_as_a_trace(run: Run) -> None:
    traces = [records.load([path], salt) for salt, path in enumerate(run.records.values())]
    requests = [request for trace in traces for request in trace.requests]
    assert len(requests) == TURNS
    assert sum(request.after is not None for request in requests) > TURNS / 3
    reported = [call for path in run.records.values() for call in ended(path)]
    tokens = sum(call.prompt_tokens or 0 for call in reported)
    assert abs(sum(request.input_tokens for request in requests) - tokens) <= len(requests)
    for trace in traces:
        assert 0.5 < trace.ceiling() < 1.0
        for request in trace.requests:
            full = request.input_tokens // trace.block_tokens
            assert len(request.blocks) >= full
            assert (request.tail is None) == (request.input_tokens % trace.block_tokens == 0)
            if request.after is not None:
                before = trace.requests[request.after]
                assert (before.session, before.turn) == (request.session, request.turn - 1)
                shared = before.input_tokens // trace.block_tokens
                assert request.blocks[:shared] == before.blocks[:shared]
                assert 0 <= request.at_s < 60


def test_a_record_without_a_served_turn_is_no_trace(run: Run, tmp_path: Path) -> None:
    def keep_the_first(changed: list[RecordedCall]) -> None:
        del changed[1:]

    with pytest.raises(TraceError, match="no turn was served"):
        records.load([rewritten(run.records["east"], tmp_path / "empty", keep_the_first)])


@pytest.mark.parametrize("at_fault", [None, ["east-e0"]], ids=["open", "failed"])
def test_turns_without_an_answer_count_as_requests(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_fault: list[str] | None
) -> None:
    def answer_none(changed: list[RecordedCall]) -> None:
        changed[:] = [
            Failed(call.ticket, call.now_s, at_fault) if at_fault and isinstance(call, Ended) else call
            for call in changed
            if at_fault or not isinstance(call, Ended)
        ]

    monkeypatch.setattr(records, "MAX_REQUESTS", 2)
    with pytest.raises(TraceError, match="more than 2 requests"):
        records.load([rewritten(run.records["east"], tmp_path / "unanswered", answer_none)])


def test_the_command_says_whether_all_decisions_came_out_the_same(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    east, west = run.records["east"], run.records["west"]
    count = len(placed(east))
    assert verify_records([east, west]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    same = f"{east}: {count} of {count} decisions came out the same; the record ends with: the proxy stopped {west}:"
    assert printed.startswith(same)
    assert "the record is cut off at byte " in printed
    assert verify_records([rewritten(east, tmp_path / "changed", double_the_prompts), west]) == 1
    assert "recorded by warmroute 0" in capsys.readouterr().out
    (tmp_path / "other").write_bytes(b"nothing")
    assert verify_records([west, tmp_path / "other", tmp_path / "none"]) == 2
    said = capsys.readouterr().err
    assert "other is not a record of a router" in said
    assert "none cannot be read: No such file" in said
