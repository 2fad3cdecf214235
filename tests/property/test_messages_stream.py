"""A chat stream as Anthropic's events: no text is lost or changed, however it is written, framed and cut."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from warmroute_proxy.dialects.messages.events import EventTranslator
from warmroute_proxy.dialects.messages.signatures import is_signed
from warmroute_proxy.server.dialects.exchange import unframed

KEY = b"k" * 32
TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
    | st.sampled_from(["a", " b", '"', "\\", "\n", "\\n", 'x","content":"y', "}]}", "data: [DONE]"]),
    min_size=1,
    max_size=12,
)


def event(name: str, text: str, *, is_ascii: bool) -> bytes:
    """A chunk as SGLang writes it."""
    delta: dict[str, Any] = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None, name: text}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "matched_stop": None}
    chunk = {"id": "1", "created": 5, "object": "chat.completion.chunk", "choices": [choice], "usage": None}
    return b"data: %b\n\n" % json.dumps(chunk, ensure_ascii=is_ascii, separators=(",", ":")).encode()


def blocks(data: bytes) -> list[dict[str, Any]]:
    """The blocks that a client puts together."""
    found: list[dict[str, Any]] = []
    for each in data.decode().split("\n\n")[:-1]:
        read = json.loads(each.partition("\ndata: ")[2])
        if read["type"] == "content_block_start":
            found.append(read["content_block"])
        elif read["type"] == "content_block_delta":
            delta = read["delta"]
            assert read["index"] == len(found) - 1
            name = delta["type"].removesuffix("_delta")
            found[-1][name] += delta[name]
    return found


@given(TEXTS, TEXTS, st.booleans(), st.lists(st.integers(0, 4000)))
@example(["a", "b", "c\\"], ["a", "b", 'c\\"', "\\"], False, [])
def test_a_client_gets_every_text(thoughts: list[str], texts: list[str], is_ascii: bool, cuts: list[int]) -> None:
    said = [event("reasoning_content", text, is_ascii=is_ascii) for text in thoughts]
    said += [event("content", text, is_ascii=is_ascii) for text in texts]
    data = b"".join(said) + b"data: [DONE]\n\n"
    translator = EventTranslator("msg_1", "m", (), KEY)
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    out = b"".join([translator.feed(data[start:end]) for start, end in pairwise(ends)])
    thought, text = blocks(out)
    assert (thought["thinking"], text["text"]) == ("".join(thoughts), "".join(texts))
    assert is_signed(KEY, thought["thinking"], thought["signature"])
    by_event = EventTranslator("msg_1", "m", (), KEY)
    assert b"".join([by_event.feed(each) for each in [*said, b"data: [DONE]\n\n"]]) == out


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5))
def test_chunks_are_taken_out_of_their_framing(pieces: list[bytes]) -> None:
    assert unframed(b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces])) == b"".join(pieces)
