"""What the clients send and when they leave, drawn from the seed and the request's number: pure."""

import json
import random
from dataclasses import dataclass
from typing import Any, Final, Literal

Leave = Literal["stays", "before_head", "after_bytes", "in_body"]

_LEAVES: Final[tuple[Leave, ...]] = ("stays", "before_head", "after_bytes", "in_body")
SESSIONS: Final = 40
_SYSTEM: Final = "You are a careful assistant who answers at length and in order. "


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `leave_after`: seconds for "before_head", bytes of the answer for "after_bytes"."""

    number: int
    path: str
    body: bytes
    stream: bool
    tenant: int
    leave: Leave
    leave_after: float
    resets: bool
    """Whether a client that leaves does so with a reset."""

    reads_slowly: bool
    keeps: bool
    """Whether the connection is used again."""


def ask(seed: int, number: int) -> Ask:
    """Request `number` of a run."""
    draw = random.Random(f"ask {seed} {number}")
    stream = draw.random() < 0.7
    chat = draw.random() < 0.85
    leave = draw.choices(_LEAVES, [85, 6, 8, 1])[0]
    leave_after = draw.uniform(0.0, 0.6) if leave == "before_head" else float(draw.randint(1, 4000))
    body = _chat(draw, number) if chat else _completion(draw, number)
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return Ask(
        number,
        "/v1/chat/completions" if chat else "/v1/completions",
        json.dumps(body).encode(),
        stream,
        draw.randrange(2),
        leave,
        leave_after,
        draw.random() < 0.5,
        draw.random() < 0.03,
        draw.random() < 0.7,
    )


def _chat(draw: random.Random, number: int) -> dict[str, Any]:
    """A turn of one of a few sessions: a prefix that others share, and an end of its own."""
    session = draw.randrange(SESSIONS)
    messages = [{"role": "system", "content": f"Session {session}. " + _SYSTEM * (4 + session)}]
    for turn in range(draw.randrange(4)):
        messages.append({"role": "user", "content": f"question {turn} of session {session}"})
        messages.append({"role": "assistant", "content": f"answer {turn} of session {session}"})
    messages.append({"role": "user", "content": f"request {number}"})
    tokens = draw.choices([draw.randint(1, 8), draw.randint(8, 60), draw.randint(100, 400)], [20, 70, 10])[0]
    script = json.dumps({"output_tokens": tokens})
    return {"model": "kimi-k2.5", "messages": messages, "metadata": {"script": script}}


def _completion(draw: random.Random, number: int) -> dict[str, Any]:
    prompt = f"Text {draw.randrange(SESSIONS)}. " + _SYSTEM * draw.randint(1, 30) + f"Request {number}."
    return {"model": "kimi-k2.5", "prompt": prompt, "max_tokens": draw.randint(1, 60)}
