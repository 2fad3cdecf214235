"""Traces are loaded as their formats say, and a bad one is refused with the place and the reason."""

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import asdict

from warmroute.files.given import UnreadableFile
from warmroute_lab.replay.loaders import load, load_all, prompts
from warmroute_lab.replay.trace import TraceError, concatenated
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.replicas.record import MAGIC, Dispatched, Ended, Opened, Placed, RecordedCall, frame


def written(path: Path, rows: list[Any]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def chat(timestamp: float, tokens: int, ids: list[int], output: int = 10) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": ids}


def session(turns: "Sequence[Sequence[Any]]", tools: int = 0, system: int = 0) -> dict[str, Any]:
    return {"session": "s", "block": 64, "tool_tokens": tools, "system_tokens": system, "turns": turns}


def weka(requests: list[dict[str, Any]], **other: Any) -> dict[str, Any]:
    """A session as `weka_trace` has it, with the members that AIPerf's models ask for. Made up: no trace can be had."""
    return {
        "id": "s", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 0, "system_tokens": 0,
        "requests": requests, "totals": None,
    } | other  # fmt: skip


def call(at_s: float, tokens: int, ids: list[int], api_s: float = 1.0, kind: str = "n") -> dict[str, Any]:
    return {
        "t": at_s, "type": kind, "model": "m", "in": tokens, "out": 20, "hash_ids": ids, "input_types": ["text"],
        "output_types": [], "stop": "", "api_time": api_s, "think_time": 0.5,
    }  # fmt: skip


def sub_agent(at_s: float, requests: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "t": at_s, "type": "subagent", "agent_id": "a", "subagent_type": "Explore", "duration_ms": 1, "total_tokens": 1,
        "tool_use_count": 0, "status": "completed", "requests": requests, "models": ["m"], "tool_tokens": 0,
        "system_tokens": 0,
    }  # fmt: skip


class TestWeka:
    """Made-up files: the published corpora are not to be had here."""

    HEAD = tuple(range(32))  # 2,048 tokens

    def forked(self, *, relative: bool) -> dict[str, Any]:
        base_s = 0.0 if relative else 5.0
        agents = [
            sub_agent(5.0, [call(base_s + n * 0.1, 2560, [*self.HEAD, *range(100 * n, 100 * n + 8)], 3.0 + n, "s")])
            for n in (1, 2)
        ]
        after = call(12.0, 3072, [*self.HEAD, *range(900, 916)])
        return weka([call(0.0, 2048, [*self.HEAD], 4.0), *agents, after])

    @pytest.mark.parametrize("relative", [True, False])
    def test_sub_agents_begin_after_the_turn_before_and_the_next_turn_waits_for_the_last(
        self, tmp_path: Path, relative: bool
    ) -> None:
        trace = load(written(tmp_path / "t.json", [self.forked(relative=relative)]))
        first, one, two, after = trace.requests
        assert trace.sessions == 3
        assert [each.session for each in trace.requests] == [0, 1, 2, 0]
        assert (one.after, two.after, after.after) == (first.number, first.number, two.number)
        assert [round(each.at_s, 3) for each in (one, two, after)] == [1.1, 1.2, 1.8]
        assert one.blocks[:4] == two.blocks[:4] == first.blocks == after.blocks[:4]
        assert one.blocks[4] != two.blocks[4]
        assert (after.turn, after.continued_tokens) == (2, 2048)

    def test_a_partial_block_has_a_name_of_its_own_and_ids_count_within_their_session_alone(
        self, tmp_path: Path
    ) -> None:
        short, whole = weka([call(0.0, 800, list(range(13)))]), weka([call(0.0, 1024, list(range(16)))])
        paths = [written(tmp_path / f"{n}.json.gz", [each]) for n, each in enumerate((short, whole, short))]
        one, two, three = load_all(paths).requests
        assert one.tail == one.blocks[1]
        assert two.tail is None
        assert not {*one.blocks} & ({*two.blocks} | {*three.blocks})
        assert max(each.at_s for each in (one, two, three)) < 3600.0  # all files are one trace

    def test_a_file_may_be_indented_or_have_a_session_a_line(self, tmp_path: Path) -> None:
        session = self.forked(relative=False)
        indented = tmp_path / "t.json"
        indented.write_text(json.dumps(session, indent=1))
        assert len(load(indented).requests) == 4
        assert load(written(tmp_path / "t.jsonl", [session, session])).sessions == 6

    @pytest.mark.parametrize(
        ("session", "problem"),
        [
            (weka([], block_size=48), "block_size 48 does not divide 512"),
            (weka([], hash_id_scope="global"), "global"),
            (weka([call(0.0, -1, [])]), ">= 0"),
            (weka([{"type": "other", "t": 0.0}]), "other"),
        ],
    )
    def test_what_is_odd_is_refused_with_its_place(self, tmp_path: Path, session: dict[str, Any], problem: str) -> None:
        with pytest.raises(TraceError, match=f"t.json.*line 1.*{problem}"):
            load(written(tmp_path / "t.json", [session]))


class TestMooncake:
    def test_equal_timestamps_are_spread_over_the_gap_to_the_next(self, tmp_path: Path) -> None:
        rows = [chat(0, 512, [1]), chat(0, 512, [2]), chat(3000, 512, [3]), chat(9000, 512, [4])]
        times = [request.at_s for request in load(written(tmp_path / "t.jsonl", rows)).requests]
        assert times == sorted(times)
        assert all(0 <= time < 3 for time in times[:2])
        assert times[0] != times[1]
        assert 3 <= times[2] < 9 <= times[3] < 9 + 4.5  # the last group: the median gap

    def test_the_first_arrival_is_at_0_also_of_a_trace_with_the_time_of_day(self, tmp_path: Path) -> None:
        rows = [[chat(begin_ms + 1000 * at, 512, [at]) for at in range(9)] for begin_ms in (0, 1_760_000_000_000)]
        times = [[each.at_s for each in load(written(tmp_path / "t.jsonl", each)).requests] for each in rows]
        assert times[0] == times[1]

    def test_a_seed_draws_the_arrivals_alone(self, tmp_path: Path) -> None:
        path = written(tmp_path / "t.jsonl", [chat(0, 512, [number]) for number in range(9)] + [chat(3000, 512, [9])])
        first, same, other = (load(path, seed=seed).requests for seed in (1, 1, 2))
        assert [each.at_s for each in first] == [each.at_s for each in same] != [each.at_s for each in other]
        assert sorted(each.blocks[0] for each in first) == sorted(each.blocks[0] for each in other)

    def test_a_turn_continues_the_one_whose_full_blocks_it_begins_with(self, tmp_path: Path) -> None:
        first = chat(0, 1100, [1, 2, 3])  # two full blocks and a rest
        second = chat(1000, 1600, [1, 2, 9, 10])
        other = chat(2000, 1100, [1, 5, 6])  # one shared block names no session
        requests = load(written(tmp_path / "t.jsonl.gz", [first, second, other])).requests
        assert [(each.session, each.turn) for each in requests] == [(0, 1), (0, 2), (1, 1)]
        assert requests[1].continued_tokens == 1024

    def test_equal_ids_are_equal_blocks_within_a_trace_and_others_elsewhere(self, tmp_path: Path) -> None:
        path = written(tmp_path / "t.jsonl", [chat(0, 1100, [1, 2, 3]), chat(1, 1100, [1, 2, 4])])
        one, other = load(path, 0), load(path, 1)
        assert one.requests[0].blocks[:2] == one.requests[1].blocks[:2]
        assert one.requests[0].tail != one.requests[1].tail
        assert not set(one.requests[0].blocks) & set(other.requests[0].blocks)

    def test_a_wrong_number_of_blocks_is_refused_with_its_line(self, tmp_path: Path) -> None:
        path = written(tmp_path / "t.jsonl", [chat(0, 512, [1]), chat(0, 600, [1])])
        with pytest.raises(TraceError, match=r"line 2: input_length 600 needs 2 hash_ids"):
            load(path)

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            (chat(-1, 512, [1]), r".* >= 0.* at `\$\.timestamp`"),
            (chat(1e300, 512, [1]), r".* <= 1000000000000000.* at `\$\.timestamp`"),
            (chat(0, 512, [-1]), r".* >= 0.* at `\$\.hash_ids"),
            (chat(0, 512, [2**64]), "hash_ids are not all below"),
        ],
    )
    def test_numbers_that_cannot_be_are_refused_with_their_line(
        self, tmp_path: Path, row: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(TraceError, match=f"line 2: {reason}"):
            load(written(tmp_path / "t.jsonl", [chat(0, 512, [1]), row]))

    def test_a_blank_line_does_not_shift_the_number_of_another(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        path.write_text(json.dumps(chat(0, 512, [1])) + "\n\n")
        assert len(load(path).requests) == 1
        path.write_text(json.dumps(chat(0, 512, [1])) + "\n\n[]\n")
        with pytest.raises(TraceError, match="line 2"):
            load(path)


class TestSessions:
    def test_tools_and_system_are_shared_by_sessions_of_equal_sizes(self, tmp_path: Path) -> None:
        turn = [0, 2048, 5, 32, 0, -1, 0, 1]
        rows = [session([turn], 1000, 100), session([turn], 1000, 100), session([turn], 1000, 99)]
        one, same, other = load(written(tmp_path / "t.jsonl", rows)).requests
        assert one.blocks[:2] == same.blocks[:2]  # 1,100 tokens are two full blocks
        assert one.blocks[2] != same.blocks[2]
        assert one.blocks[0] != other.blocks[0]

    def test_a_turn_begins_with_the_blocks_of_its_base_and_follows_the_turn_before(self, tmp_path: Path) -> None:
        turns: list[list[Any]] = [
            [0, 2048, 5, 32, 0, -1, 0, 1],
            [9, 2560, 5, 40, 32, 0, 7.5, 1],
            [20, 2560, 5, 40, 16, 0, 4000, 1],  # a fork; an hour of thinking is cut to half an hour
        ]
        first, second, third = load(written(tmp_path / "t.jsonl", [session(turns)])).requests
        assert second.blocks[:4] == first.blocks
        assert third.blocks[:2] == first.blocks[:2]
        assert third.blocks[2] not in {first.blocks[2], second.blocks[2]}
        assert (first.after, second.after, third.after) == (None, 0, 1)
        assert (second.at_s, third.at_s) == (7.5, 1800)

    def test_a_session_ends_after_an_hour(self, tmp_path: Path) -> None:
        turns: list[list[Any]] = [[0, 512, 1, 8, 0, -1, 0, 1], *([0, 512, 1, 8, 8, 0, 1700, 1] for _ in range(4))]
        assert len(load(written(tmp_path / "t.jsonl", [session(turns)])).requests) == 3

    @pytest.mark.parametrize(
        "turn",
        [
            [0, 512, 1, 8, 0, 4, 0, 1],  # its base does not exist
            [0, 512, 1, 8, 0, -1, -5, 1],
            [0, 512, 1, 8, 0, -1, 0, -1],
            [0, 512, 1, 10**12, 0, -1, 0, 1],
            [0, 0, 1, 8, 0, -1, 0, 1],
        ],
    )
    def test_impossible_turns_are_refused_with_their_line(self, tmp_path: Path, turn: list[Any]) -> None:
        with pytest.raises(TraceError, match="line 1: turn 0 has impossible numbers"):
            load(written(tmp_path / "t.jsonl", [session([turn])]))

    @pytest.mark.parametrize("tools", [-1, 10**13])
    def test_impossible_tools_are_refused(self, tmp_path: Path, tools: int) -> None:
        row = session([[0, 512, 1, 8, 0, -1, 0, 1]], tools, 0)
        with pytest.raises(TraceError, match="line 1: tool_tokens and system_tokens cannot be"):
            load(written(tmp_path / "t.jsonl", [row]))


class TestPrompts:
    def bodies(self, turns: int) -> list[dict[str, Any]]:
        tools = [{"type": "function", "function": {"name": "look", "description": "to look. " * 200}}]
        messages = [
            {"role": ("user", "assistant")[at % 2], "content": f"{at}: what was said. " * 100}
            for at in range(2 * turns - 1)
        ]
        return [{"model": "m", "tools": tools, "messages": messages[: 2 * turn + 1]} for turn in range(turns)]

    def test_turns_extend_each_other_and_come_after_the_one_before(self) -> None:
        requests = prompts.load([prompts.Recorded("one", self.bodies(3))]).requests
        assert [request.after for request in requests] == [None, 0, 1]
        for before, after in itertools.pairwise(requests):
            assert after.blocks[: len(before.blocks) - 1] == before.blocks[:-1]
            assert after.continued_tokens == before.input_tokens

    def test_copies_share_their_tools_and_nothing_else(self) -> None:
        one, other = prompts.load([prompts.Recorded("one", self.bodies(1))], copies=2).requests
        shared = len(set(one.blocks) & set(other.blocks))
        assert one.blocks[:shared] == other.blocks[:shared]
        tools_tokens = len("to look. " * 200) // prompts.BYTES_PER_TOKEN
        assert tools_tokens // prompts.BLOCK_TOKENS <= shared <= tools_tokens // prompts.BLOCK_TOKENS + 1
        assert shared < len(one.blocks)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'{"a": 1}\n', "neither"),
        (b"nonsense\n", "line 1 is not JSON"),
        (b"[" * 100_000, "neither"),
        (b'{"a":' * 100_000, "line 1 is not JSON"),
        (b"\x1f\x8b\x08", "cut off or damaged"),
        (gzip.compress(b"{}" * 999, mtime=0)[:14] + b"\xff" * 9, "cut off or damaged"),
        (gzip.compress(b"{}\n" * 1_000_001), "more than 1000000 lines"),
        (gzip.compress(b"[" + b"1," * 8_000_001), "more than 8000000 values"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises((TraceError, UnreadableFile), match=reason):
        load(path)


@pytest.mark.parametrize("system_tokens", [0, 1 << 26])
def test_few_bytes_do_not_stand_for_millions_of_blocks(tmp_path: Path, system_tokens: int) -> None:
    """1 KB took 7.7 GB."""
    lines = [
        {"block": 1, "tool_tokens": number, "system_tokens": system_tokens, "turns": [[0, 9, 9, 1 << 24, 0, -1, 0, 0]]}
        for number in range(200)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(TraceError, match="need more than 512 MiB of ids: replay a part of it"):
        load(path)


def test_a_record_has_the_arrivals_that_were_whatever_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "proxy.record"
    path.write_bytes(b"warmroute record 2\n")
    with pytest.raises(TraceError, match="leave out --seed"):
        load(path, seed=2)


def turn_of(session: int, turn: int) -> RoutingRequest:
    """A turn whose prompt begins with 5,000 tokens that all sessions share, and grows by 1,000 tokens a turn."""
    ends = [20_000, *(20_000 + 4_000 * (n + 1) for n in range(turn))]
    hashes = [Random(name).getrandbits(64) for name in ("shared", *(f"{session}.{n}" for n in range(turn)))]
    return RoutingRequest(
        "m", session, session, False, None, Chain(hashes, ends), ends[-2], turn, 100, None, None, False
    )


def record_of(path: Path, turns: Sequence[tuple[float, RoutingRequest]]) -> Path:
    """A record in which a process serves turns, each for half a second."""
    router = Router("east", [Worker("a", "a", 0, "aggregated")])
    calls: list[RecordedCall] = [Opened("1", "east", "cost", [], [])]
    for ticket, (at_s, routing) in enumerate(turns):
        calls += [Placed(at_s, routing, frozenset(), router.place(routing, at_s)), Dispatched(at_s)]
        calls.append(Ended(ticket, at_s + 0.5, routing.chain.total_bytes // 4, 0, 100))
    record = MAGIC + b"".join(frame(call) for call in calls)
    path.write_bytes(gzip.compress(record) if path.suffix == ".gz" else record)
    return path


@pytest.mark.parametrize(("order", "suffix"), [((0, 1, 2), ""), ((2, 0, 1), ".gz")])
def test_records_of_a_proxys_processes_are_one_trace(tmp_path: Path, order: Sequence[int], suffix: str) -> None:
    """Sessions go from one process to another with each turn, and share a prefix."""
    turns = [(10.0 + 3 * turn + session, turn_of(session, turn + 1)) for turn in range(6) for session in range(2)]
    turns.sort(key=lambda each: each[0])
    whole = load(record_of(tmp_path / "whole", turns))
    parts = [record_of(tmp_path / f"proxy.record.{n}{suffix}", turns[n::3]) for n in range(3)]
    together = load_all([parts[n] for n in order])
    assert [asdict(each) for each in together.requests] == [asdict(each) for each in whole.requests]
    assert (together.sessions, together.ceiling()) == (2, whole.ceiling())
    assert sum(each.after is not None for each in together.requests) == 10


def test_records_of_other_proxies_and_other_files_are_played_one_after_the_other(tmp_path: Path) -> None:
    turns = [(1.0, turn_of(1, 1)), (2.0, turn_of(2, 1))]
    one, other = (record_of(tmp_path / name, turns) for name in ("east.record.0", "west.record.0"))
    for paths in ([one, other], [one, one]):
        trace = load_all(paths)
        assert trace.sessions == 4
        assert not set(trace.requests[0].blocks) & set(trace.requests[2].blocks)
    chats = [written(tmp_path / f"chat.{n}", [chat(0, 1100, [1, 2, 3])]) for n in range(2)]
    assert load_all(chats).sessions == 2


def test_traces_are_played_one_after_the_other(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", [chat(0, 1100, [1, 2, 3]), chat(4000, 1700, [1, 2, 5, 6])])
    both = concatenated([load(path, 0), load(path, 1)])
    assert [request.number for request in both.requests] == [0, 1, 2, 3]
    assert [request.session for request in both.requests] == [0, 0, 1, 1]
    times = [request.at_s for request in both.requests]
    assert times == sorted(times)
    assert times[2] >= times[1]
