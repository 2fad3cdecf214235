"""The guard of a client: warnings, events, `raise`, repair, and what it never does."""

import logging
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import warmroute
from warmroute.contract.identity import KINDS

pytestmark = pytest.mark.full

if TYPE_CHECKING:
    from tests.integration.sdk.conftest import Driver

SECRET = "canary-4711"
SYSTEM = {"role": "system", "content": f"You are brief. {SECRET}\nToday's date: Fri Nov 20 2026\n{'Rules. ' * 200}"}
ASK = {"role": "user", "content": "list the files"}
BEFORE = [SYSTEM, ASK]


def dated(day: str) -> list[dict[str, Any]]:
    return [{**SYSTEM, "content": SYSTEM["content"].replace("Fri Nov 20 2026", day)}, ASK]


def send(driver: "Driver", client: Any, messages: Any, **options: Any) -> Any:
    return driver.run(client.chat.completions.create(model="m", messages=messages, **options))


def send_days(driver: "Driver", client: Any, *days: str) -> None:
    for day in days:
        send(driver, client, dated(day))


def test_one_warning_per_cause_and_session_at_the_callers_line(
    driver: "Driver", caplog: pytest.LogCaptureFixture
) -> None:
    client = driver.client(session="s")
    send(driver, client, BEFORE)
    with caplog.at_level(logging.WARNING, "warmroute"), pytest.warns(warmroute.PrefixWarning) as warned:
        send_days(driver, client, "Sat Nov 21 2026", "Sun Nov 22 2026", "Mon Nov 23 2026")
    [one] = warned
    assert one.filename.startswith(str(Path(__file__).parent))  # the driver awaits asynchronous calls
    text = str(one.message)
    assert text.startswith("session s: date at messages[0] (system), line 2: a date or time changed; about ")
    assert "USD more than cached. To change: move it to the newest user message" in text
    assert [record.message for record in caplog.records if record.name == "warmroute"] == [text]
    assert client.cache.guard.counts == {"date": 3}
    assert SECRET not in text + str(client.cache.guard) + repr(client.cache.guard.events) + client.cache.explain()


def test_an_event_has_the_tokens_that_the_server_counted(driver: "Driver") -> None:
    client = driver.client(session="s")
    send(driver, client, BEFORE)
    with pytest.warns(warmroute.PrefixWarning):
        send(driver, client, dated("Sat Nov 21 2026"))
    [event] = client.cache.guard.events
    assert (event.cause, event.where, event.line, event.session) == ("date", "messages[0] (system)", 2, "s")
    assert 180 <= event.tokens_lost <= 200  # the server counts 100 a message; the date is near the beginning
    assert event.usd_lost == pytest.approx(event.tokens_lost * (0.6 - 0.1) / 1e6)
    assert event.is_clients_own


def test_raise_sends_nothing(driver: "Driver") -> None:
    client = driver.client(session="s", guard="raise")
    send(driver, client, BEFORE)
    with pytest.raises(warmroute.PrefixBroken, match="date at messages") as raised:
        send(driver, client, dated("Sat Nov 21 2026"))
    assert raised.value.event.cause == "date"
    assert client.cache.guard.events == (raised.value.event,)
    assert len(driver.server.posts) == 1
    send(driver, client, [*BEFORE, {"role": "assistant", "content": "a.txt"}, ASK])
    assert client.cache.report().internal_errors == 0


@pytest.mark.parametrize("stored", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
def test_a_turn_whose_history_the_server_keeps_is_not_compared(driver: "Driver", stored: dict[str, Any]) -> None:
    client = driver.client(session="s", guard="raise")
    for size in (8000, 100):
        result = {"type": "function_call_output", "call_id": f"c{size}", "output": "x" * size}
        driver.run(client.responses.create(model="m", instructions="Be brief.", input=[result], **stored))
    assert client.cache.guard.events == ()
    assert client.cache.report().internal_errors == 0


def test_a_turn_whose_history_the_server_keeps_begins_no_conversation(driver: "Driver") -> None:
    client = driver.client()
    driver.run(client.responses.create(model="m", input=[ASK], previous_response_id="resp_1"))
    assert "x-session-affinity" not in driver.server.last.headers


def test_off_reads_nothing(driver: "Driver", monkeypatch: pytest.MonkeyPatch) -> None:
    client = driver.client(session="s", guard="off")
    monkeypatch.setattr("warmroute.guard.memory.read", lambda *_: pytest.fail("it was read"))
    send(driver, client, BEFORE)
    send(driver, client, dated("Sat Nov 21 2026"))
    assert client.cache.guard.events == ()
    assert client.cache.report().internal_errors == 0


def test_a_filter_that_makes_errors_of_warnings_fails_no_call(driver: "Driver") -> None:
    client = driver.client(session="s")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        send(driver, client, BEFORE)
        assert send(driver, client, dated("Sat Nov 21 2026")).choices[0].message.content == "hello"
    assert client.cache.report().internal_errors == 0


def test_safe_repair_freezes_the_day_and_says_so_once(driver: "Driver") -> None:
    client = driver.client(session="s", repair="safe")
    send(driver, client, BEFORE)
    with pytest.warns(warmroute.PrefixWarning, match="repaired by freeze-date") as warned:
        send_days(driver, client, "Sat Nov 21 2026", "Sun Nov 22 2026")
    assert [request.body["messages"] for request in driver.server.posts] == [BEFORE] * 3
    assert len(warned) == 1
    assert client.cache.guard.repairs == {"freeze-date": 2}
    assert client.cache.guard.counts == {}
    assert client.cache.report().hit_ratio == pytest.approx(2 / 3)


def test_a_stream_is_repaired_too(driver: "Driver") -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("a", "b")]
    client = driver.client(session="s", repair=["sort-tools"])
    for order in (tools, tools[::-1]):
        driver.read(send(driver, client, BEFORE, tools=order, stream=True))
        assert driver.server.last.body["tools"] == tools
        assert driver.server.last.body["stream_options"] == {"include_usage": True}
    assert client.cache.guard.repairs == {"sort-tools": 1}


def test_calls_without_a_session_are_guarded_within_their_conversation(driver: "Driver") -> None:
    client = driver.client(guard="raise")
    grown = [*BEFORE, {"role": "assistant", "content": "a.txt"}, ASK]
    for messages in (BEFORE, grown, dated("Sat Nov 21 2026")):  # the last one begins a conversation of its own
        send(driver, client, messages)
    keys = [request.headers["x-session-affinity"] for request in driver.server.posts]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("cached", "cause"), [(0, "provider-miss"), (100, None), (200, None)], ids=["nothing", "but a page", "all"]
)
def test_a_miss_of_the_server_is_told_apart(driver: "Driver", cached: int, cause: str | None) -> None:
    client = driver.client(session="s")
    send(driver, client, BEFORE)
    driver.server.kind = "openai"
    driver.server.prompts["s"] = cached
    send(driver, client, [*BEFORE, ASK])
    assert [event.cause for event in client.cache.guard.events] == ([cause] if cause else [])
    assert ("Not on your side: provider-miss" in client.cache.explain()) == (cause is not None)


def test_titles_and_agents_of_a_session_do_not_mix(driver: "Driver") -> None:
    client = driver.client(guard="raise")
    for _ in range(2):
        with warmroute.session("s"):
            send(driver, client, BEFORE)
        with warmroute.session("s", kind="title"):
            send(driver, client, dated("Sat Nov 21 2026"))
        with warmroute.session("s", agent="reviewer"):
            send(driver, client, dated("Sun Nov 22 2026"))
    assert {request.headers["x-session-affinity"] for request in driver.server.posts} == {"s"}
    assert [request.headers.get("x-warmroute-kind") for request in driver.server.posts[:3]] == [None, "title", None]
    assert driver.server.last.headers["x-warmroute-agent"] == "reviewer"


def test_a_session_is_saved_and_goes_on_in_another_process(driver: "Driver") -> None:
    first = driver.client(session="s")
    send(driver, first, BEFORE)
    saved = first.cache.save("s")
    second = driver.client(guard="raise")
    with warmroute.session(second.cache.load(saved)):
        send(driver, second, [*BEFORE, ASK])
        with pytest.raises(warmroute.PrefixBroken, match="date at"):
            send(driver, second, dated("Sat Nov 21 2026"))
    assert driver.server.last.headers["x-warmroute-home"] == "east"


def test_a_fork_has_its_own_key_and_shares_the_prefix(driver: "Driver") -> None:
    client = driver.client(session="s", guard="raise")
    send(driver, client, BEFORE)
    key = client.cache.fork("s")
    with warmroute.session(key):
        send(driver, client, [*BEFORE, ASK])
        with pytest.raises(warmroute.PrefixBroken):
            send(driver, client, dated("Sat Nov 21 2026"))
    assert driver.server.last.headers["x-session-affinity"] == key != "s"
    assert re.fullmatch("f-[0-9a-f]{32}", key)


def test_a_session_that_was_never_seen_is_neither_saved_nor_forked(driver: "Driver") -> None:
    client = driver.client(session="s")
    send(driver, client, BEFORE)
    for use in (client.cache.save, client.cache.fork):
        with pytest.raises(LookupError, match="no turn of session 'other'"):
            use("other")


@pytest.mark.parametrize("kind", ["sub", "title", "compaction", "auxiliary"])
def test_a_kind_has_one_name_in_a_block_a_header_and_a_receipt(driver: "Driver", kind: Any) -> None:
    client = driver.client()
    with warmroute.session("s", kind=kind):
        send(driver, client, BEFORE)
    assert driver.server.last.headers["x-warmroute-kind"] == kind
    assert kind in KINDS


def test_compaction_repeats_what_was_sent(driver: "Driver") -> None:
    tools = [{"type": "function", "function": {"name": "a", "parameters": {}}}]
    client = driver.client(session="s", guard="raise")
    send(driver, client, BEFORE, tools=tools)
    driver.run(client.chat.completions.create(**client.cache.compact(BEFORE, "Summarise this conversation.")))
    sent = driver.server.last.body
    assert sent["messages"] == [*BEFORE, {"role": "user", "content": "Summarise this conversation."}]
    assert (sent["tools"], sent["model"]) == (tools, "m")
    assert client.cache.report().cached_tokens == 200


@pytest.mark.parametrize("option", [{"guard": "loud"}, {"repair": "everything"}, {"backend": "elsewhere"}])
def test_an_unknown_name_is_an_error_that_says_which_there_are(driver: "Driver", option: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option.values()))}.*(off|safe|warmroute)"):
        driver.client(**option)
