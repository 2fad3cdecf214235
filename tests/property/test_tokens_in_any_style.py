"""Tokens are counted, not matched: no style in which a server writes its JSON or its events makes an answer free."""

import json
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.engines.passthrough import Passthrough
from warmroute_proxy.server.engines.sse import UsageTracker
from warmroute_proxy.server.request.answer import Answer

SHAPES: Final[dict[str, Any]] = {
    "delta": lambda text: {"choices": [{"index": 0, "delta": {"content": text}}]},
    "a delta beside a message": lambda text: {"choices": [{"index": 0, "delta": {}, "message": {"content": text}}]},
    "a text": lambda text: {"choices": [{"index": 0, "text": text}]},
    "a text beside a delta": lambda text: {"choices": [{"index": 0, "delta": {}, "text": text}]},
    "parts": lambda text: {"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": text}]}}]},
    "thoughts": lambda text: {"choices": [{"index": 0, "delta": {"reasoning_content": text}}]},
    "thoughts by another name": lambda text: {"choices": [{"index": 0, "delta": {"thinking": text}}]},
    "nested thoughts": lambda text: {"choices": [{"index": 0, "delta": {"reasoning_details": [{"text": text}]}}]},
    "arguments": lambda text: {
        "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}]
    },
    "calls that are no list": lambda text: {"choices": [{"delta": {"tool_calls": {"function": {"arguments": text}}}}]},
    "a custom call": lambda text: {"choices": [{"delta": {"tool_calls": [{"index": 0, "custom": {"input": text}}]}}]},
    "no delta": lambda text: {"choices": [{"index": 0, "content": text}]},
    "choices by number": lambda text: {"choices": {"0": {"delta": {"content": text}}}},
    "no choices": lambda text: {"message": {"content": text}, "done": False},
    "empty choices": lambda text: {"choices": [], "output": [{"text": text}]},
    "nested": lambda text: {"choices": [{"delta": {"message": {"content": text}}}]},
}
NULLS: Final = st.sampled_from(["null", "absent", "empty"])
SEPARATORS: Final = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :  ")])
LINES: Final = st.sampled_from(["\n", "\r\n", "\r"])
words = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12), min_size=5, max_size=40
)


def styled(event: dict[str, Any], null: str, separators: tuple[str, str], escaped: bool, turned: bool) -> str:
    """An event as some server would write it."""
    for choice in event.get("choices") or []:
        if null != "absent" and isinstance(choice, dict):
            choice |= {"finish_reason": None if null == "null" else "", "logprobs": None}
    event = {"id": "x", "object": "chat.completion.chunk", "model": "m", **event}
    if turned:
        event = dict(reversed(event.items()))
    text = json.dumps(event, separators=separators, ensure_ascii=escaped)
    return text.replace('"content"', '"\\u0063ontent"') if escaped else text


class Sink:
    """An engine's connection and the stream on it, which go to nobody."""

    def __init__(self) -> None:
        self.scanner = UsageTracker(keep_sglext=False)
        self.passed = b""

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            line = data.index(b"\r\n", at)
            size = int(data[at:line], 16)
            self.passed += self.scanner.feed(data[line + 2 : line + 2 + size])
            at = line + 2 + size + 2

    def reads(self, passthrough: Passthrough) -> bool:
        return True

    def read_much(self, data: bytes) -> bool:
        return False

    def go_on(self, data: bytes) -> None:
        self.feed(data)

    def connection_lost(self, exc: Exception | None) -> None: ...

    def passthrough_target(self) -> Any:
        return self.write

    def write(self, data: bytes) -> None:
        self.passed += data


@given(
    words,
    st.sampled_from(sorted(SHAPES)),
    NULLS,
    SEPARATORS,
    st.booleans(),
    st.booleans(),
    LINES,
    st.sampled_from(["data: ", "data:", "id: 1{}data: ", ": hm{}data: "]),
)
def test_each_event_with_text_counts(
    texts: list[str],
    shape: str,
    null: str,
    separators: tuple[str, str],
    escaped: bool,
    turned: bool,
    line: str,
    prefix: str,
) -> None:
    tracker = UsageTracker(keep_sglext=False)
    for text in texts:
        payload = styled(SHAPES[shape](text), null, separators, escaped, turned)
        tracker.feed(f"{prefix.format(line)}{payload}{line}{line}".encode())
    tracker.end()
    assert tracker.tokens_seen >= len(texts)
    assert tracker.started


@given(words, st.sampled_from(sorted(SHAPES)), NULLS, SEPARATORS, st.booleans(), st.booleans())
def test_chunks_that_pass_unread_count_as_those_that_are_read(
    texts: list[str], shape: str, null: str, separators: tuple[str, str], escaped: bool, turned: bool
) -> None:
    sink, read = Sink(), UsageTracker(keep_sglext=False)
    stream = Passthrough(sink, sink)
    for text in texts:
        event = f"data: {styled(SHAPES[shape](text), null, separators, escaped, turned)}\n\n".encode()
        read.feed(event)
        stream.data_received(b"%x\r\n%b\r\n" % (len(event), event))
    assert sink.scanner.tokens_seen == read.tokens_seen >= len(texts)


@given(words, st.sampled_from(sorted(SHAPES)), NULLS, SEPARATORS, st.booleans())
def test_a_long_text_counts_by_its_bytes(
    texts: list[str], shape: str, null: str, separators: tuple[str, str], escaped: bool
) -> None:
    text = "word " * (20 * len(texts))
    tracker = UsageTracker(keep_sglext=False)
    tracker.feed(f"data: {styled(SHAPES[shape](text), null, separators, escaped, False)}\n\n".encode())
    assert tracker.tokens_seen >= len(text) // 8


MESSAGES: Final[dict[str, Any]] = {
    "content": lambda text: {"content": text},
    "parts": lambda text: {"content": [{"type": "text", "text": text}]},
    "thoughts": lambda text: {"content": None, "reasoning": text},
    "thoughts by another name": lambda text: {"content": "", "thinking": text},
    "nested thoughts": lambda text: {"content": None, "reasoning_details": [{"type": "t", "text": text}]},
    "calls": lambda text: {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": text}}]},
    "a custom call": lambda text: {"content": None, "tool_calls": [{"custom": {"name": "f", "input": text}}]},
    "the old call": lambda text: {"content": None, "function_call": {"name": "f", "arguments": text}},
    "nested": lambda text: {"content": None, "answer": {"content": text}},
}


@given(words, st.sampled_from(sorted(MESSAGES)), SEPARATORS, st.booleans())
def test_a_whole_answer_without_usage_has_a_length(
    texts: list[str], shape: str, separators: tuple[str, str], escaped: bool
) -> None:
    text = "".join(texts)
    answer = {"choices": [{"index": 0, "message": MESSAGES[shape](text), "finish_reason": "stop"}]}
    found = Answer(json.dumps(answer, separators=separators, ensure_ascii=escaped).encode())
    assert found.text_bytes() >= len(text.encode())
    assert found.output_bytes() >= len(text)


def test_metadata_is_no_text() -> None:
    tracker = UsageTracker(keep_sglext=False)
    for event in (
        {"id": "x", "object": "chat.completion.chunk", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"annotations": [{"url": "https://example.org"}]}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ):
        tracker.feed(f"data: {json.dumps(event)}\n\n".encode())
    assert tracker.tokens_seen <= 1
