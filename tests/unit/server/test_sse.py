"""The scanner: the client's bytes are the engine's, whatever way they were cut on the way."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.engines.sse import UsageTracker

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 4}}


def event(chunk: dict[str, Any] | str) -> bytes:
    text = chunk if isinstance(chunk, str) else json.dumps(chunk, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "id": "r",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
    }


ROLE = event(delta(role="assistant", content=""))
CALL = event(delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]))
CONTENT = [
    event(delta(content='he said "usage": {"error": [DONE]}')),
    event(delta(content="[DONE]")),
    event({**delta(content="x"), "usage": None}),
    event(delta(tool_calls=[{"index": 0, "function": {"arguments": '{"usage":{"a":1}}'}}])),
    event(delta(reasoning_content="hm ☃")),
    event({**delta(), "choices": delta(content="a")["choices"] + delta(content="b")["choices"]}),
]
FINISH = event(delta(finish="stop"))
SGLEXT = event({"choices": [], "sglext": {"cached_tokens_details": {"device": 4, "host": 0}}})
LAST = event({"id": "r", "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
DONE = event("[DONE]")


def run(
    stream: bytes, cuts: list[int], *, keep_sglext: bool = False, keep_usage: bool = True
) -> tuple[UsageTracker, bytes]:
    scanner = UsageTracker(keep_sglext=keep_sglext, keep_usage=keep_usage)
    out = b""
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        if end > start:
            out += scanner.feed(stream[start:end])
    return scanner, out


@given(st.lists(st.sampled_from(CONTENT), max_size=12), st.lists(st.integers(0, 10_000), max_size=40))
def test_any_split_gives_the_same_bytes_and_accounts(content: list[bytes], cuts: list[int]) -> None:
    content = [CALL, *content]
    relayed = ROLE + b"".join(content) + FINISH
    scanner, out = run(relayed + SGLEXT + LAST + DONE, cuts)
    assert out == relayed
    assert scanner.done
    assert scanner.usage == USAGE
    assert scanner.details == {"device": 4, "host": 0}
    assert scanner.usage_event is not None
    assert scanner.usage_event["id"] == "r"
    assert scanner.tokens_seen == sum(run(each, [])[0].tokens_seen for each in content)


def test_nothing_has_started_while_only_roles_were_said() -> None:
    scanner = UsageTracker(keep_sglext=False)
    assert scanner.feed(ROLE + ROLE) == ROLE + ROLE
    assert not scanner.started
    scanner.feed(CONTENT[4])
    assert scanner.started


@pytest.mark.parametrize(
    "error",
    [
        event({"error": {"object": "error", "message": "queue is full", "code": 503}}),
        event({"object": "error", "message": "queue is full", "code": 503}),
        event(
            json.dumps({"error": {"object": "error", "message": "queue is full", "code": 503}})
        ),  # spaced, as SGLang's
    ],
)
def test_an_error_event_and_what_follows_is_withheld(error: bytes) -> None:
    scanner, out = run(ROLE + error + LAST + DONE, [])
    assert out == ROLE
    assert scanner.error is not None
    assert scanner.error["message"] == "queue is full"
    assert scanner.usage == USAGE
    assert scanner.done


@pytest.mark.parametrize("cuts", [[], list(range(1000))], ids=["one read", "byte by byte"])
def test_nothing_starts_after_an_error_whatever_the_engine_goes_on_to_say(cuts: list[int]) -> None:
    scanner, out = run(event({"error": {"message": "no"}}) + CONTENT[4] + CONTENT[1] + FINISH + LAST + DONE, cuts)
    assert out == b""
    assert not scanner.started
    assert scanner.tokens_seen == 0
    assert (scanner.usage, scanner.done) == (USAGE, True)


def test_accounts_are_found_however_a_server_spaces_its_json() -> None:
    spaced = [event(json.dumps(json.loads(raw[6:]))) for raw in (CONTENT[4], SGLEXT, LAST)]
    scanner, out = run(ROLE + b"".join(spaced) + DONE, [])
    assert out == ROLE + spaced[0]
    assert (scanner.usage, scanner.details, scanner.done) == (USAGE, {"device": 4, "host": 0}, True)


def test_details_stay_for_a_client_that_asked_for_them() -> None:
    _, out = run(ROLE + CONTENT[4] + SGLEXT + LAST + DONE, [], keep_sglext=True)
    assert out == ROLE + CONTENT[4] + SGLEXT


def test_running_usage_that_the_client_asked_for_passes() -> None:
    running = event({**delta(content="x"), "usage": USAGE})
    scanner, out = run(ROLE + running + LAST + DONE, [])
    assert out == ROLE + running
    assert scanner.usage == USAGE


@pytest.mark.parametrize("cuts", [[], list(range(2000))], ids=["one read", "byte by byte"])
def test_usage_that_the_client_did_not_ask_for_is_taken_out_wherever_it_stands(cuts: list[int]) -> None:
    bare = [event(delta(content=text)) for text in "abcd"]
    odd = json.dumps({**delta(content="e"), "usage": USAGE, "x_groq": None, "logprob": float("nan")})
    stated = [event({**delta(content=text), "usage": USAGE}) for text in "abc"]
    in_choice = event(delta(content="d")).replace(b"null}", b'null,"usage":%b}' % json.dumps(USAGE).encode())
    scanner, out = run(b"".join([*stated, in_choice, event(odd), LAST, DONE]), cuts, keep_usage=False)
    *same, last = out.split(b"\n\n")[:-1]
    assert [each + b"\n\n" for each in same] == bare
    assert json.loads(last[6:]) == {**delta(content="e"), "x_groq": None, "logprob": None}
    assert (scanner.usage, scanner.tokens_seen) == (USAGE, 5)


def test_events_with_carriage_returns_pass_with_line_feeds() -> None:
    scanner, out = run((CONTENT[4] + DONE).replace(b"\n", b"\r\n"), [])
    assert out == CONTENT[4]
    assert scanner.done


def test_an_event_that_never_ends_is_an_error() -> None:
    scanner = UsageTracker(keep_sglext=False)
    with pytest.raises(ValueError, match="exceeds"):
        for _ in range(20):
            scanner.feed(b"x" * 1_000_000)
