"""When an engine drains, the hot prompts that it has are computed where their sessions go next, before they come."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.subjects.fleet import Fleet
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from tests.subjects.stopped import Several

FILLER = "All of this is the project's guide, which is long. "


def turn(session: int, turns: int = 1, **fields: Any) -> dict[str, Any]:
    """A turn of a session of its own, with a prompt of some 40 KB."""
    body = chat(f"session {session}", turns=turns, max_tokens=4, **fields)
    body["messages"][0]["content"] = f"Guide of session {session}. " + FILLER * 800
    return body


class Keeping(Fleet):
    """Engines behind a proxy that keeps prompts."""

    def receipt(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.client.post("/v1/chat/completions", json=body).raise_for_status().json()
        found: dict[str, Any] = answer["usage"]
        return found

    def metric(self, name: str) -> float:
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", self.admin.get("/metrics").text, re.MULTILINE)
        return sum(float(value) for value in found)

    def drained(self, engine_id: str) -> bool:
        return bool(self.admin.get(f"/admin/engines/{engine_id}/drain").json()["drained"])


def homes(usage: dict[str, Any]) -> str:
    return str(usage["warmroute"]["workers"][0]["id"])


def test_sessions_find_their_prompts_on_their_new_home(tmp_path: Path) -> None:
    with Keeping(tmp_path, [EngineProcess(tmp_path, f"e{n}", "aggregated") for n in range(3)]) as fleet:
        first = {session: fleet.receipt(turn(session)) for session in range(6)}
        assert fleet.metric("warmroute_kept_prompts") == 6
        assert fleet.metric("warmroute_kept_prompt_bytes") > 6 * len(FILLER * 800)
        home = homes(first[0])
        moved = [session for session, usage in first.items() if homes(usage) == home]
        fleet.admin.post(f"/admin/engines/{home}/drain").raise_for_status()
        until(lambda: fleet.drained(home), "its prompts are elsewhere")
        assert fleet.metric("warmroute_re_prefills_total") == len(moved)
        assert fleet.metric("warmroute_re_prefilled_tokens_total") > 5000 * len(moved)
        for session in moved:
            usage = fleet.receipt(turn(session, turns=2))
            assert homes(usage) != home
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached > 0.95 * first[session]["prompt_tokens"], "computed before the turn came"
            assert usage["warmroute"]["predicted_cached"] == pytest.approx(cached, rel=0.05)
        rows = fleet.proxy.rows(expected=6 + len(moved))
        assert len(rows) == 6 + len(moved), "what the proxy did by itself is nobody's"
        assert FILLER not in fleet.proxy.written(), "no prompt was written anywhere"


@pytest.mark.real_deadlines("GONE_S")
def test_what_an_engine_took_with_it_is_computed_anew(tmp_path: Path) -> None:
    """SIGTERM: it says 503 and is gone a moment later; the sessions' prompts are computed all the same."""
    with Keeping(tmp_path, [EngineProcess(tmp_path, f"e{n}", "aggregated") for n in range(2)]) as fleet:
        first = fleet.receipt(turn(0))
        home = homes(first)
        os.kill(fleet.engines[home].child.pid, signal.SIGTERM)
        until(lambda: fleet.metric("warmroute_re_prefills_total") == 1, "its prompt is computed elsewhere")
        usage = fleet.receipt(turn(0, turns=2))
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.95 * first["prompt_tokens"]


def test_a_pair_computes_it_on_the_prefill_engine_that_stays(tmp_path: Path) -> None:
    engines = [EngineProcess(tmp_path, f"p{n}", "prefill") for n in range(2)] + [
        EngineProcess(tmp_path, "d0", "decode")
    ]
    with Keeping(tmp_path, engines) as fleet:
        first = fleet.receipt(turn(0))
        home = homes(first)
        fleet.admin.post(f"/admin/engines/{home}/drain").raise_for_status()
        until(lambda: fleet.drained(home), "its prompt is elsewhere")
        assert fleet.metric("warmroute_re_prefills_total") == 1
        usage = fleet.receipt(turn(0, turns=2))
        assert homes(usage) != home
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.95 * first["prompt_tokens"]
        until(lambda: all(engine.running() == 0 for engine in engines), "nothing is left on any engine")


def test_nothing_is_kept_where_the_operator_wants_none(tmp_path: Path) -> None:
    engines = [EngineProcess(tmp_path, f"e{n}", "aggregated") for n in range(2)]
    with Keeping(tmp_path, engines, limits="kept_prompt_bytes = 0") as fleet:
        home = homes(fleet.receipt(turn(0)))
        assert "\nwarmroute_kept_prompt_bytes 0\n" in fleet.admin.get("/metrics").text
        fleet.admin.post(f"/admin/engines/{home}/drain").raise_for_status()
        assert fleet.drained(home)
        assert fleet.metric("warmroute_re_prefills_total") == 0


def answers(handler: Handler) -> None:
    handler.reply(200, whole({"prompt_tokens": 9000, "completion_tokens": 1, "total_tokens": 9001}))


def test_the_same_body_with_the_same_salt_and_one_token(tmp_path: Path) -> None:
    with (
        Several([ScriptedEngine(f"s{n}", answers) for n in range(2)]) as engines,
        ProxyProcess(tmp_path / "p", [engine.toml() for engine in engines]) as proxy,
    ):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        extra: dict[str, Any] = {"tools": tools, "temperature": 0.5, "n": 1, "logprobs": False, "metadata": {"a": "b"}}
        with proxy.client() as client, proxy.admin() as admin:
            client.post("/v1/chat/completions", json=turn(0, **extra)).raise_for_status()
            old, new = sorted(engines, key=lambda engine: -len(engine.bodies))
            asked = old.sent()
            admin.post(f"/admin/engines/{old.name}/drain").raise_for_status()
            until(lambda: new.bodies, "the other engine computes it")
            until(lambda: admin.get(f"/admin/engines/{old.name}").json()["drained"], "and has")
        sent = new.sent()
        assert sent["max_tokens"] == 1
        for name in ("messages", "tools", "temperature", "cache_salt", "model"):
            assert sent[name] == asked[name]
        assert sent["rid"] != asked["rid"]
        assert not {"stream", "n", "logprobs", "metadata"} & set(sent)
        assert len(new.bodies) == 1, "once"


def takes_no_high(handler: Handler) -> None:
    if json.loads(handler.engine.bodies[-1]).get("reasoning_effort") == "high":
        handler.reply(400, b'{"message":"Unexpected reasoning effort high. Supported types are xhigh and low."}')
    else:
        answers(handler)


def test_a_prompt_whose_effort_was_refused_is_computed_with_the_one_it_was_served_with(tmp_path: Path) -> None:
    with (
        Several([ScriptedEngine(f"s{n}", takes_no_high) for n in range(2)]) as engines,
        ProxyProcess(tmp_path / "p", [engine.toml() for engine in engines]) as proxy,
    ):
        with proxy.client() as client, proxy.admin() as admin:
            answer = client.post("/v1/chat/completions", json=turn(0, reasoning_effort="high")).raise_for_status()
            home = homes(answer.json()["usage"])
            (new,) = [engine for engine in engines if engine.name != home]
            before = len(new.bodies)
            admin.post(f"/admin/engines/{home}/drain").raise_for_status()
            until(lambda: len(new.bodies) > before, "the other engine computes it")
        assert new.sent()["reasoning_effort"] == "xhigh"
        assert new.sent()["max_tokens"] == 1
