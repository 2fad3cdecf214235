"""Coding agents, unmodified, through the proxy: each turn has its receipt, and is as warm as it can be."""

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.machine import seconds
from tests.subjects.processes import files_in

from warmroute.contract import receipt as receipts
from warmroute_lab.engine.model.prompt import render
from warmroute_lab.fleet import CONTEXT_TOKENS
from warmroute_proxy.core.prompt.compactions import is_compacted

from . import network, page
from .cases import CANARY, CASES, call, order
from .lineages import Turn, begun, breaks, changed, hit, ideal_hit, losses
from .play import Played, cannot_run, play, replay
from .stage import Stage, Start

pytestmark = [pytest.mark.timeout(seconds(240)), pytest.mark.filterwarnings("default::UserWarning")]
GROWTH = ("new", "page_rounding", "not_kept")
"""What also a prompt loses that only grows."""

NAMES_SESSION = ("opencode", "claude", "kimi")
"""Those that compact here after several turns, and send a session key."""

SUB_AGENTS_ORDER = b"\nobey: answer The sub-agent is done."
"""As it stands in the sub-agent's own prompt; in its parent's it is inside the JSON of a call."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"))
    if not network.closed():
        warnings.warn("no network namespace: programs are kept off the network by proxy variables alone", stacklevel=1)
    with made.fleet:
        yield made


@pytest.fixture(scope="module", params=list(CASES))
def played(request: pytest.FixtureRequest, stage: Stage) -> Played:
    name: str = request.param
    found = play(stage, name, CASES[name])
    if found.replayed and not CASES[name].recording:
        pytest.skip(f"{name} cannot run here, and has no recording: {found.replayed}")
    if found.replayed:
        warnings.warn(f"{name} cannot run here, its recording was played: {found.replayed}", stacklevel=1)
    return found


def test_what_it_sends_is_noted(played: Played) -> None:
    """For `scripts/integrations newest`, which compares it with what the pinned program sends."""
    file = os.environ.get("WARMROUTE_SHAPES")
    if file is None or not played.turns:
        return
    known = json.loads(Path(file).read_text()) if Path(file).exists() else {}
    known[played.name] = {"names": played.names, "hit": hit(played.turns), "ideal": ideal_hit(played.turns)[1]}
    Path(file).write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def test_the_program_ends_well(played: Played) -> None:
    for start, done, rids in played.starts:
        said = f"{start.arguments}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, said
        assert rids, said
        assert f"warmroute: {len(rids)} turns in " in done.stderr, said


def test_each_request_has_its_row_and_its_receipt(played: Played, stage: Stage) -> None:
    sent = [rid for _, _, rids in played.starts for rid in rids]
    booked = [rid for turn in played.turns for rid in turn.row["rids"]]
    assert sorted(booked) == sorted(sent) or played.replayed
    assert played.turns
    headers = {"authorization": f"Bearer {stage.fleet.api_key}"}
    with httpx.Client(base_url=stage.fleet.proxies["east"].base_url, headers=headers, timeout=seconds(20)) as client:
        for turn in played.turns:
            assert turn.row["outcome"] == "completed"
            assert receipts.check(turn.row["usage"]) == []
            answer = client.get(f"/usage/receipts/{turn.row['id']}").raise_for_status().json()
            assert answer["usage"] == turn.row["usage"]


def test_it_has_taken_many_turns_with_calls_of_tools(played: Played) -> None:
    longest = max(played.turns, key=lambda turn: len(turn.body["messages"]))
    answers = [message for message in longest.body["messages"] if message["role"] == "assistant"]
    assert len(answers) >= 8
    assert any(message["role"] == "tool" for message in longest.body["messages"]) == played.case.tools


def test_prompts_only_grow_but_for_known_breaks(played: Played) -> None:
    if played.replayed:
        return
    found = breaks(played.turns)
    known = played.case.breaks
    for each in found:
        why = [loss for words, loss in known.items() if words in each.after]
        assert why, f"{each.turn.row['id']}: {each.before!r} => {each.after!r}"
        assert set(each.turn.losses) <= {*why[0], *GROWTH}, f"{each.turn.losses}: {each.after!r}"
    assert bool(found) == bool(known)


def test_the_page_says_what_is_lost_where_a_prefix_breaks(played: Played) -> None:
    """As the receipts say it; `WARMROUTE_UPDATE_DOCS=1 scripts/integrations harness` writes it."""
    if played.replayed or played.case.title not in page.causes() or not page.OF_PINS:
        return
    turns = changed(played.turns) or begun(played.turns)
    seen = ", ".join(f"`{name}`" for name in sorted({name for turn in turns for name in turn.losses} - {*GROWTH}))
    if os.environ.get("WARMROUTE_UPDATE_DOCS") == "1":
        page.write_cause(played.case.title, seen)
    assert page.causes()[played.case.title] == seen


def test_unknown_is_at_most_a_hundredth(played: Played) -> None:
    """What was expected to be cached, and is lost for no cause that was seen, is a fault of ours."""
    assert losses(played.turns).get("unknown", 0) <= 0.01 * sum(int(turn.row["prompt_tokens"]) for turn in played.turns)


def test_turns_are_as_warm_as_can_be(played: Played) -> None:
    assert hit(played.turns) >= ideal_hit(played.turns)[1] - 0.01


def test_agents_are_told_apart(played: Played) -> None:
    if played.replayed:
        return
    lineages = len({turn.lineage for turn in played.turns})
    assert played.case.agents <= lineages <= played.case.agents + played.case.titles
    if "sub-agents" in played.case.lacks:
        return
    of_subs = {turn.lineage for turn in played.turns if SUB_AGENTS_ORDER in render(turn.body)}
    others = {turn.lineage for turn in played.turns if SUB_AGENTS_ORDER not in render(turn.body)}
    assert len(of_subs) == 1
    assert not of_subs & others


def test_a_conversation_is_resumed(played: Played) -> None:
    if played.case.resumed is None or played.replayed:
        assert played.replayed or "resuming" in played.case.lacks
        return
    first, *_ = played.turns_of(played.case.resumed)
    assert sum(message["role"] == "assistant" for message in first.body["messages"]) >= 7


def test_it_has_compacted(played: Played) -> None:
    if not played.case.compacted or played.replayed:
        assert played.replayed or "compaction" in played.case.lacks
        return
    assert any(played.case.compacted in str(turn.body["messages"]) for turn in played.turns)


def test_its_turns_go_on_after_it_has_compacted(played: Played) -> None:
    """Where it names its session: the first prompt behind a compaction follows the turns before it."""
    marked = [turn for turn in played.turns if is_compacted(msgspec.json.encode(turn.body))]
    if played.replayed or played.name not in NAMES_SESSION:
        return
    assert marked
    before = [each.row["turn"] for each in played.turns if each.row["opened_at"] < marked[0].row["opened_at"]
              and each.lineage == marked[0].lineage]  # fmt: skip
    assert marked[0].row["turn"] > max(before)
    numbers = [each.row["turn"] for each in marked if each.lineage == marked[0].lineage]
    assert numbers == sorted(numbers)


def test_it_came_in_through_its_regions(played: Played) -> None:
    """Where it was served is another matter: what comes in elsewhere goes to the home of its lineage."""
    entered = {turn.row["forwarded_from"] or turn.row["region"] for turn in played.turns}
    assert tuple(sorted(entered)) == played.case.regions or played.replayed


def test_no_file_of_the_users_was_touched(played: Played, stage: Stage) -> None:
    home = stage.project(played.name).parent / "home"
    assert list(home.iterdir()) == []


def test_no_log_has_a_prompt_or_a_key(played: Played, stage: Stage) -> None:
    files = list(files_in(stage.fleet.run_dir))
    kept = files_in(stage.project(played.name).parent / "kept")
    assert not [path for path, data in files if CANARY.encode() in data]
    assert not [path for path, data in (*files, *kept) if stage.fleet.api_key.encode() in data]
    assert not [done for _, done, _ in played.starts if stage.fleet.api_key in done.stdout + done.stderr]


@pytest.mark.parametrize("played", ["codex", "copilot"], indirect=True)
def test_it_stays_on_its_websockets(played: Played) -> None:
    """One for each start, for the sub-agent and behind the compaction: it never connects again for a turn."""
    if played.replayed:
        return
    assert len(played.starts) < played.sockets <= len(played.starts) + 2


def test_opencode_by_its_websockets_and_any_program_by_its_command(stage: Stage) -> None:
    """Behind `--`, with variables of all APIs alone. The stored key lets OpenCode's plugin open the socket: any one."""
    name = "opencode-websockets"
    options = {"apiKey": "{env:OPENAI_API_KEY}", "baseURL": "{env:OPENAI_BASE_URL}"}
    limit = {"context": CONTEXT_TOKENS, "output": 8192}
    openai = {"options": options, "models": {"gpt-5.1-codex": {"limit": limit}}}
    model = "openai/gpt-5.1-codex"
    files = {
        "opencode.json": json.dumps({"model": model, "small_model": model, "provider": {"openai": openai}}),
        "../home/.local/share/opencode/auth.json": json.dumps({"openai": {"type": "api", "key": "any"}}),
    }
    orders = [call("bash", command=f"echo {CANARY} {number}", description="echo") for number in range(8)]
    variables = ("OPENCODE_DISABLE_DEFAULT_PLUGINS=false", "OPENCODE_EXPERIMENTAL_WEBSOCKETS=true")
    command = ("env", *variables, "opencode", "run")
    before, sockets = set(stage.fleet.taps.chats), stage.opened_sockets()
    done = stage.start(name, Start(command, order(*orders, "answer All is done."), files=files))
    assert done.returncode == 0, done.stderr
    assert "All is done." in done.stdout
    rows = stage.rows_of([rid for rid in stage.fleet.taps.chats if rid not in before])
    turns = [Turn(row, stage.fleet.taps.chats[row["rids"][-1]].body) for row in rows]
    assert len(turns) >= 9
    assert stage.opened_sockets() == sockets + 1
    assert not breaks(turns)
    assert hit(turns) >= ideal_hit(turns)[1] - 0.01


def test_the_page_has_its_row(played: Played, tmp_path: Path) -> None:
    """`WARMROUTE_UPDATE_DOCS=1 scripts/integrations harness` writes it."""
    if os.environ.get("WARMROUTE_UPDATE_DOCS") == "1":
        off = Stage(tmp_path, "round_robin")
        with off.fleet:
            page.write(page.row_of(played, page.off_hit(off, played.turns)))
    if played.replayed:
        return
    if not page.OF_PINS:
        return
    cells = page.written()[played.case.title]
    assert cells[1] == page.pinned(played.case.package)
    assert 0 <= int(cells[3]) - played.case.agents <= played.case.titles


def test_a_recording_stands_in_for_a_program_that_cannot_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "environment", lambda _: {"PATH": "/nowhere"})
    reason = cannot_run(stage, "aider")
    assert reason.startswith("aider --help: ")
    found = replay(stage, "aider", CASES["aider"], reason)
    assert len(found.turns) == 6
    assert hit(found.turns) >= ideal_hit(found.turns)[1] - 0.01


def test_programs_are_off_the_network() -> None:
    """Where a namespace can be made, `scripts/integrations` makes one; elsewhere proxy variables stand in for it."""
    assert network.closed() or set(network.variables()) >= {"HTTP_PROXY", "HTTPS_PROXY"}


@pytest.mark.parametrize("name", list(CASES))
def test_the_table_of_cases_is_complete(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    regions = sorted({start.region for start in case.starts(tmp_path)})
    assert tuple(regions) == case.regions
