"""Prompts that are computed ahead: what is sent, that it is counted apart, and that no budget is exceeded."""

import asyncio
import time
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.machine import seconds

import warmroute
from warmroute._warm import Ping, Plan, plan_of, reason_to_stop

if TYPE_CHECKING:
    from tests.integration.sdk.conftest import Driver

SYSTEM = {"role": "system", "content": "You are brief."}
ASK = {"role": "user", "content": "hello"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
COLD_USD = (200 * 0.6 + 16 * 3) / 1e6
"""What two messages and a short answer cost with nothing cached, by the rates of the mock server."""


def test_a_prompt_that_was_warmed_is_cached_when_the_user_asks(driver: "Driver") -> None:
    client = driver.client(session="s", guard="raise")
    driver.run(client.cache.warm([SYSTEM], TOOLS, model="m"))
    assert driver.server.last.body["max_tokens"] == 1
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK], tools=TOOLS))
    report = client.cache.report()
    assert (report.turns, report.prompt_tokens, report.cached_tokens) == (1, 200, 100)
    assert (report.warmed.turns, report.warmed.receipts, report.warmed.prompt_tokens) == (1, 1, 100)
    assert report.by_session["s"].turns == 1
    assert "computed ahead: 1 turns" in str(report)


def test_the_model_is_that_of_the_last_turn(driver: "Driver") -> None:
    client = driver.client(session="s")
    with pytest.raises(ValueError, match="needs a model"):
        driver.run(client.cache.warm([SYSTEM]))
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK]))
    driver.run(client.cache.warm([SYSTEM, ASK, ASK]))
    assert driver.server.last.body["model"] == "m"


def pinged(driver: "Driver", client: Any, **options: Any) -> Any:
    """A session that was kept warm until it ended by itself."""

    async def kept_by_task() -> Any:
        kept = client.cache.keep_warm("s", **options)
        await asyncio.wait_for(kept.wait(), seconds(20))
        return kept

    if driver.kind == "async":
        return driver.run(kept_by_task())
    kept = client.cache.keep_warm("s", **options)
    assert kept.wait(seconds(20))
    return kept


def test_pings_stay_within_the_budget(driver: "Driver") -> None:
    client = driver.client(session="s")
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK], tools=TOOLS))
    kept = pinged(driver, client, max_usd=3 * COLD_USD, interval_s=0.01)
    assert kept.stopped_because == "the next ping could exceed its budget"
    assert kept.pings >= 3
    assert 0 < kept.spent_nanousd <= 3 * COLD_USD * 1e9
    report = client.cache.report()
    assert report.warmed.turns == kept.pings == len(driver.server.posts) - 1
    assert report.warmed.cost_nanousd == kept.spent_nanousd
    assert report.turns == 1
    assert driver.server.last.body["messages"] == [SYSTEM, ASK]
    assert driver.server.last.body["tools"] == TOOLS
    assert driver.server.last.headers["x-session-affinity"] == "s"
    assert client.cache.guard.counts == {}


def test_sessions_that_are_kept_warm_together_spend_only_what_is_theirs(driver: "Driver") -> None:
    client = driver.client()
    keys = [f"s{number}" for number in range(5)]
    for key in keys:
        with warmroute.session(key):
            driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK]))

    async def kept_by_tasks() -> list[Any]:
        kept = [client.cache.keep_warm(key, max_usd=3 * COLD_USD, interval_s=0.001) for key in keys]
        await asyncio.gather(*(asyncio.wait_for(each.wait(), seconds(20)) for each in kept))
        return kept

    if driver.kind == "async":
        kept = driver.run(kept_by_tasks())
    else:
        kept = [client.cache.keep_warm(key, max_usd=3 * COLD_USD, interval_s=0.001) for key in keys]
        assert all(each.wait(seconds(20)) for each in kept)
    assert sum(each.spent_nanousd for each in kept) == client.cache.report().warmed.cost_nanousd


def test_pings_end_with_their_time(driver: "Driver") -> None:
    client = driver.client(session="s")
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK]))
    kept = pinged(driver, client, max_usd=1.0, interval_s=0.01, until=time.time() - 1)
    assert (kept.pings, kept.stopped_because) == (0, "its time is over")


@pytest.mark.parametrize("kind", ["plain", "bare"])
def test_without_rates_nothing_is_sent(driver: "Driver", kind: str) -> None:
    driver.server.kind = kind
    client = driver.client(session="s")
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK]))
    kept = pinged(driver, client, max_usd=1.0, interval_s=0.01)
    assert (kept.pings, kept.stopped_because) == (0, "no rates are known for its model")


def test_a_ping_that_fails_ends_it(driver: "Driver") -> None:
    client = driver.client(session="s", max_retries=2)
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK]))
    driver.server.fails_with = 503
    kept = pinged(driver, client, max_usd=1.0, interval_s=0.01)
    assert kept.stopped_because == "a ping failed: InternalServerError"
    assert len(driver.server.posts) == 2, "a retry might cost as much, so there is none"


def test_no_ping_is_sent_while_the_session_has_a_call_of_unknown_cost(driver: "Driver") -> None:
    client = driver.client(session="s")
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK]))
    stream = driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK, ASK], stream=True))
    assert client.cache.books.ping_of("s") == Ping({}, 0)
    driver.read(stream)
    ping = client.cache.books.ping_of("s")
    assert (ping.arguments["messages"], ping.worst_nanousd) == ([SYSTEM, ASK, ASK], 300 * 600 + 16 * 3000)


@pytest.mark.parametrize("ending", ["title", "failed", "left", "left at once"])
def test_the_last_prompt_of_the_main_loop_that_was_answered_is_pinged(driver: "Driver", ending: str) -> None:
    client = driver.client(session="s")
    create = client.chat.completions.create
    driver.run(create(model="m", messages=[SYSTEM, ASK], tools=TOOLS))
    if ending == "title":
        driver.run(create(model="m", messages=[{"role": "system", "content": "Title?"}, ASK]))
    elif ending == "failed":
        driver.server.fails_with = 400
        with pytest.raises(openai.BadRequestError):
            driver.run(create(model="m", messages=[SYSTEM, ASK, ASK], tools=TOOLS))
    else:
        stream = driver.run(create(model="m", messages=[SYSTEM, ASK, ASK], tools=TOOLS, stream=True))
        if ending == "left":
            driver.run(stream.__next__() if driver.kind == "sync" else stream.__anext__())
        driver.run(stream.close())
    ping = client.cache.books.ping_of("s")
    assert (ping.arguments["messages"], ping.arguments["tools"]) == ([SYSTEM, ASK], TOOLS)
    assert client.cache.guard.counts == {}


def test_a_sub_agent_is_not_pinged_for_its_larger_prompt(driver: "Driver") -> None:
    client = driver.client(session="s")
    agent = [{"role": "system", "content": "Explore."}, {"role": "user", "content": "find " * 9000}]
    for messages, tools in (([SYSTEM, ASK], TOOLS), ([SYSTEM, ASK, ASK], TOOLS), (agent, [])):
        driver.run(client.chat.completions.create(model="m", messages=messages, tools=tools))
    assert client.cache.books.ping_of("s").arguments["messages"] == [SYSTEM, ASK, ASK]


def test_a_session_without_an_answer_has_no_ping_and_a_reason(driver: "Driver") -> None:
    client = driver.client(session="other")
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK]))
    driver.server.fails_with = 400
    with warmroute.session("s"), pytest.raises(openai.BadRequestError):
        driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK]))
    assert pinged(driver, client, max_usd=1.0, interval_s=0.01).stopped_because is not None


def test_settings_are_pinged_as_they_were_sent_and_thinking_is_not(driver: "Driver") -> None:
    client = driver.client(session="s")
    extra = {"chat_template_kwargs": {"thinking": True}}
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK], extra_body=extra))
    pinged(driver, client, max_usd=2 * COLD_USD, interval_s=0.01)
    assert driver.server.last.body == {"model": "m", "messages": [SYSTEM, ASK], "max_tokens": 1, **extra}
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK], extra_body=thinking))
    assert client.cache.books.ping_of("s") is None


def test_a_block_ends_it(server: Any) -> None:
    client = warmroute.OpenAI(base_url=server.url, api_key="k", session="s")
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    with client.cache.keep_warm("s", max_usd=1.0) as kept:
        pass
    assert (kept.stopped_because, kept.pings) == ("it was stopped", 0)
    client.close()


def test_samples_stay_or_spread(driver: "Driver") -> None:
    client = driver.client(session="s", guard="raise")
    driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK]))
    assert client.cache.samples("s", 3) == ["s", "s", "s"]
    keys = client.cache.samples("s", 3, spread=True)
    assert len({*keys, "s"}) == 4
    for key in keys:
        with warmroute.session(key):
            driver.run(client.chat.completions.create(model="m", messages=[SYSTEM, ASK]))
        assert driver.server.last.headers["x-session-affinity"] == key


PLAN = Plan("s", 1000, 60.0, 500.0)


@pytest.mark.parametrize(
    ("spent", "ping", "now_s", "reason"),
    [
        (0, Ping({}, 1000), 499.0, None),
        (1, Ping({}, 1000), 499.0, "the next ping could exceed its budget"),
        (0, Ping({}, 0), 500.0, "its time is over"),
        (0, None, 0.0, "no ping can be made of the session's last prompt"),
        (0, Ping({}, None), 0.0, "no rates are known for its model"),
    ],
)
def test_reasons_to_stop(spent: int, ping: Ping | None, now_s: float, reason: str | None) -> None:
    assert reason_to_stop(PLAN, spent, ping, now_s) == reason


@pytest.mark.parametrize(("interval_s", "ttl_s", "every_s"), [(None, 0, 240.0), (None, 600, 480.0), (5.0, 600, 5.0)])
def test_the_interval_is_that_of_the_server(interval_s: float | None, ttl_s: float, every_s: float) -> None:
    assert plan_of("s", 1.0, None, interval_s, ttl_s).interval_s == every_s


@pytest.mark.parametrize(("max_usd", "interval_s"), [(0.0, None), (-1.0, None), (1.0, 0.0), (1.0, -5.0)])
def test_no_budget_is_no_plan(max_usd: float, interval_s: float | None) -> None:
    with pytest.raises(ValueError, match="max_usd above 0"):
        plan_of("s", max_usd, None, interval_s, 0)
