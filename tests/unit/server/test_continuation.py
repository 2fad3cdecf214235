"""Whether an answer can be continued, what another engine is asked, and how two halves are one answer."""

import json
import sys
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from warmroute.contract import receipt as contract
from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.core.accounting.receipt import usage_object
from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.engines.sse import UsageTracker
from warmroute_proxy.server.intake.body import Body
from warmroute_proxy.server.intake.parsed_request import CHAT, COMPLETIONS, ParsedRequest, ReadRequest
from warmroute_proxy.server.request import continuation
from warmroute_proxy.server.request.attempt import Attempt
from warmroute_proxy.server.request.continuation import Continuation, Rest
from warmroute_proxy.server.request.failure import Failure

DIED = Failure(Refusal(502, "the connection to the engine broke", code="engine_error"), ("e0",), True)
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "tell [me]"}]


def read(route: str = CHAT, *, stream: bool = True, several: bool = False, **members: Any) -> ReadRequest:
    given = {"model": "m", "messages": MESSAGES} if route == CHAT else {"model": "m", "prompt": "Once"}
    body = Body(json.dumps({**given, "stream": stream, **members}).encode())
    options = members.get("stream_options") or {}
    made = SimpleNamespace(route=route, stream=stream, several=several, stream_options=options)
    return ReadRequest(cast("ParsedRequest", made), body)


def attempt(prefill: dict[str, Any] | None = None) -> Attempt:
    return cast("Attempt", SimpleNamespace(prefill_usage=lambda: prefill))


def event(delta: dict[str, Any] | None = None, finish: str | None = None, *, id_: str = "old", **choice: Any) -> bytes:
    parts = {"delta": delta} if delta is not None else {}
    chunk = {"id": id_, "choices": [{"index": 0, **parts, "finish_reason": finish, **choice}]}
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


ROLE = {"role": "assistant", "content": ""}


def asked(of: ReadRequest, *told: bytes, failure: Failure = DIED) -> dict[str, Any] | None:
    """The body of the other half; None where there is none."""
    begun = Continuation.of(*of)
    if begun is None:
        return None
    for data in told:
        assert begun.take(data) == data
    rest = begun.rest(failure, attempt())
    if rest is None:
        return None
    found: dict[str, Any] = json.loads(bytes(rest[1].raw))
    return found


WORDS = event(ROLE) + event({"content": "It was "}), event({"content": 'the "best" ', "tool_calls": None})


def test_a_chat_is_asked_to_go_on_with_what_was_said() -> None:
    found = asked(read(temperature=0.5, max_tokens=10, max_completion_tokens=9, min_tokens=1), *WORDS)
    assert found == {
        "model": "m",
        "stream": True,
        "temperature": 0.5,
        "messages": [*MESSAGES, {"role": "assistant", "content": 'It was the "best" '}],
        "continue_final_message": True,
        "max_tokens": 8,
        "max_completion_tokens": 7,
        "min_tokens": 0,
    }


def test_a_completion_has_it_behind_its_prompt() -> None:
    told = event(text=' upon a "'), event(text="time")
    assert asked(read(COMPLETIONS, max_tokens=5), *told) == {
        "model": "m",
        "stream": True,
        "prompt": 'Once upon a "time',
        "max_tokens": 3,
    }
    found = asked(read(COMPLETIONS), *told)
    assert found is not None
    assert found["max_tokens"] == 14, "of the 16 that a completion has which names no limit"


@pytest.mark.parametrize(
    "members",
    [
        {"response_format": {"type": "json_object"}},
        {"regex": "a+"},
        {"ebnf": "root ::= 'a'"},
        {"json_schema": "{}"},
        {"structural_tag": "{}"},
        {"guided_json": {}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"logprobs": True},
        {"logprobs": 0},
        {"return_token_ids": True},
        {"continue_final_message": True},
        {"echo": True},
        {"suffix": "x"},
        {"stream_options": {"continuous_usage_stats": True}},
        {"stop": "x" * 2000},
        {"stop": ["best of", "never"]},
        {"max_tokens": 2},
        {"messages": [*MESSAGES, {"role": "assistant", "content": "So:"}]},
        {"stream": False},
        {"several": True},
    ],
)
def test_what_depends_on_more_than_the_text_is_not_continued(members: dict[str, Any]) -> None:
    told = event({"content": "It was "}), event({"content": "the best"})
    assert asked(read(**members), *told) is None


@pytest.mark.parametrize(
    "members",
    [
        {"response_format": {"type": "text"}, "tool_choice": "auto", "logprobs": False, "regex": None},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": True},
        {"stop": ["best of", "never"], "return_cached_tokens_details": True, "continue_final_message": False},
    ],
)
def test_what_says_nothing_of_the_kind_is(members: dict[str, Any]) -> None:
    assert asked(read(**members), *WORDS) is not None


@pytest.mark.parametrize("raw", [b'"regex":"\xff"', b'"messages":[{"role":"\xff"}]', b'"messages":[1]'])
def test_what_cannot_be_read_is_not_continued(raw: bytes) -> None:
    of = ReadRequest(read().parsed, Body(b'{"stream":true,%b}' % raw))
    assert asked(of, event({"content": "a"})) is None


def test_token_ids_as_a_prompt_are_not_continued() -> None:
    assert asked(read(COMPLETIONS, prompt=[1, 2, 3]), event(text="a")) is None


@pytest.mark.parametrize(
    "ending",
    [
        event({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
        event({"reasoning_content": "hm"}),
        event({"reasoning": "hm"}),
        event({"content": [{"type": "text"}]}),
        event({}, finish="stop"),
        event({"content": "x"}, index=1),
        b'data: {"choices": [{"del\n\n',
        b"data: \xff\n\n",
    ],
)
def test_what_is_no_text_ends_it_for_good(ending: bytes) -> None:
    assert asked(read(), *WORDS, ending, event({"content": "more"})) is None
    parsed, body = read()
    begun = Continuation.of(parsed, body)
    assert begun is not None
    references = sys.getrefcount(body)
    begun.take(ending)
    assert sys.getrefcount(body) == references - 1, "nor is the body kept"


def test_no_more_text_is_kept_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuation, "MAX_TEXT_BYTES", 20)
    assert asked(read(), event({"content": "x" * 20})) is not None
    assert asked(read(), event({"content": "x" * 20}), event({"content": "y"})) is None


@pytest.mark.parametrize(
    ("status", "at_fault", "continued"), [(502, ("e",), 1), (504, ("e",), 1), (504, (), 0), (400, (), 0), (429, (), 0)]
)
def test_only_an_engines_own_fault_is_made_good(status: int, at_fault: tuple[str, ...], continued: bool) -> None:
    failure = Failure(Refusal(status, "x"), at_fault, False)
    assert (asked(read(), *WORDS, failure=failure) is not None) == continued


@pytest.mark.parametrize(("counted", "prompt"), [(100, 100), (None, 139), ("100", 139), (0, 139)])
def test_what_prefill_has_counted_is_the_prompt(counted: Any, prompt: int) -> None:
    begun = Continuation.of(*read())
    assert begun is not None
    begun.take(WORDS[0])
    found = begun.rest(DIED, attempt({"prompt_tokens": counted}))
    assert found is not None
    assert found[0].settled(reported(140, 96, 10), UsageTracker(keep_sglext=False)).prompt_tokens == prompt


def test_an_answer_is_continued_once_and_a_second_refusal_is_no_fault_of_the_client() -> None:
    begun = Continuation.of(*read())
    assert begun is not None
    refused = Failure(Refusal(400, "too long", code="context_length_exceeded"), (), False)
    assert begun.refusal(refused).status == 400
    begun.take(WORDS[0])
    found = begun.rest(DIED, attempt())
    assert found is not None
    begun.go_on(found[0])
    assert begun.rest(DIED, attempt()) is None
    assert (begun.refusal(refused).status, begun.refusal(DIED)) == (502, DIED.refusal)


def test_the_rest_has_the_answers_id_and_no_role() -> None:
    rest = Rest("old", 2, None)
    first = rest.take(event(ROLE, id_="new") + b": comment\n\n" + event({"content": 'of "new"'}, id_="new"))
    assert first == event({"content": 'of "new"'})
    call = {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}
    assert rest.take(event(call, id_="new") + event({}, "tool_calls", id_="new")) == event(call) + event(
        {}, "tool_calls"
    )


def test_a_rest_may_be_nothing_but_the_end() -> None:
    assert Rest("old", 2, None).take(event(ROLE, id_="n") + event({}, "stop", id_="n")) == event({}, "stop")


@pytest.mark.parametrize("delta", [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}])
def test_what_does_not_begin_with_text_is_no_rest(delta: dict[str, Any]) -> None:
    assert Rest("old", 2, None).take(event(ROLE) + event(delta)) is None
    assert Rest("old", 2, None).take(b"data: {\n\n") is None


def reported(prompt: int, cached: int, completion: int, **tiers: int) -> Usage:
    said = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return merge_usage(said, tiers or None, None, 3)


def checked(usage: Usage) -> dict[str, Any]:
    loss = {"new": usage.prompt_tokens - usage.cached_tokens}
    rates = Rates.from_usd_per_mtok("0.6", "0.1", "3")
    entry = Entry("wr-1", "acme", None, "aa", 1, "east", "m", "chat", True, rates, 5.0)
    text, _, _ = usage_object(entry, usage, loss, None)
    found: dict[str, Any] = json.loads(text)
    assert contract.check(found) == []
    return found


def test_one_account_of_both_halves() -> None:
    scanner = UsageTracker(keep_sglext=False)
    scanner.usage_event = {"id": "new", "choices": []}
    usage = checked(Rest("old", 40, None).settled(reported(140, 96, 10, device=96), scanner))
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (100, 50, 150)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 96
    assert usage["warmroute"]["estimated"] == ["prompt_tokens", "completion_tokens"]
    assert usage["warmroute"]["continued"] == {"after_tokens": 40, "by": "text"}
    assert scanner.usage_event["id"] == "old"


def test_a_prompt_that_was_counted_is_exact() -> None:
    """With speculation an event is several tokens."""
    usage = checked(Rest("old", 12, 100).settled(reported(140, 96, 10, device=96), UsageTracker(keep_sglext=False)))
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (100, 50)
    assert usage["warmroute"]["estimated"] == ["completion_tokens"]
    assert usage["warmroute"]["continued"]["after_tokens"] == 40


def test_what_was_said_may_be_cached_but_is_no_prompt() -> None:
    settled = Rest("old", 40, None).settled(
        reported(140, 128, 10, device=90, host=30, storage=8), UsageTracker(keep_sglext=False)
    )
    usage = checked(settled)
    assert usage["warmroute"]["cached"] == {"device": 90, "host": 10, "storage": 0}
    assert set(usage["warmroute"]["estimated"]) == set(contract.ESTIMATED_FIELDS)


def test_a_rest_of_which_nothing_was_reported() -> None:
    usage = checked(Rest("old", 40, 100).settled(merge_usage(None, None, None, 3), UsageTracker(keep_sglext=False)))
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (0, 43)
    assert set(usage["warmroute"]["estimated"]) == set(contract.ESTIMATED_FIELDS)
