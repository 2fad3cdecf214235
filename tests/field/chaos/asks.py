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
    text: str | None
    """What the engine is told to answer: as content, or as the arguments of a tool call. None: it is told nothing."""

    key: str
    """Its `Idempotency-Key`: such a client tries again when it got no whole answer. Empty: it does not."""

    again: bool
    """Whether it asks again though its answer was whole."""

    stream: bool
    tenant: int
    leave: Leave
    leave_after: float
    resets: bool
    """Whether a client that leaves does so with a reset."""

    reads_slowly: bool
    keeps: bool
    """Whether the connection is used again."""

    headers: tuple[tuple[str, str], ...] = ()
    """More headers."""


def ask(seed: int, number: int) -> Ask:
    """Request `number` of a run."""
    draw = random.Random(f"ask {seed} {number}")
    stream = draw.random() < 0.7
    chat = draw.random() < 0.85
    leave = draw.choices(_LEAVES, [85, 6, 8, 1])[0]
    leave_after = draw.uniform(0.0, 0.6) if leave == "before_head" else float(draw.randint(1, 4000))
    text, script = _script(draw, number, calls=chat and draw.random() < 0.15)
    body = _chat(draw) if chat else _completion(draw)
    body |= {"model": "kimi-k2.5", "metadata": {"script": json.dumps(script)}}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return Ask(
        number,
        "/v1/chat/completions" if chat else "/v1/completions",
        json.dumps(body).encode(),
        text,
        f"chaos-{seed}-{number}" if draw.random() < 0.3 else "",
        draw.random() < 0.3,
        stream,
        draw.randrange(2),
        leave,
        leave_after,
        draw.random() < 0.5,
        draw.random() < 0.03,
        draw.random() < 0.7,
    )


def _script(draw: random.Random, number: int, *, calls: bool) -> tuple[str, dict[str, Any]]:
    """An answer that no other request has, so that bytes that are lost, doubled or another's are seen; and the script
    that has an engine give it.
    """
    words = draw.choices([draw.randint(1, 4), draw.randint(4, 30), draw.randint(50, 200)], [20, 70, 10])[0]
    text = " ".join(f"{number}.{word}" for word in range(words))
    if not calls:
        return text, {"text": text}
    arguments = json.dumps({"path": text})
    return arguments, {"tool_calls": [{"name": "read", "arguments": arguments}]}


def _chat(draw: random.Random) -> dict[str, Any]:
    """A turn of one of a few sessions. There are so few that what a proxy remembers of them does not grow for ever."""
    session = draw.randrange(SESSIONS)
    messages = [{"role": "system", "content": f"Session {session}. " + _SYSTEM * (4 + session)}]
    for turn in range(draw.randrange(4)):
        messages.append({"role": "user", "content": f"question {turn} of session {session}"})
        messages.append({"role": "assistant", "content": f"answer {turn} of session {session}"})
    messages.append({"role": "user", "content": f"the last question of session {session}"})
    return {"messages": messages}


def _completion(draw: random.Random) -> dict[str, Any]:
    prompt = f"Text {draw.randrange(SESSIONS)}. " + _SYSTEM * draw.randint(1, 30)
    # Not continued where its engine dies, because of `best_of`: the embedded engine would begin its script again.
    return {"prompt": prompt, "max_tokens": 1000, "best_of": 1}
