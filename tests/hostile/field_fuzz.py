"""Random values in all fields of the API, sent to an engine where the field list lets them pass.

    python -m tests.hostile.field_fuzz URL --minutes 60 [--seed N]

`URL` is that of a running SGLang (`scripts/sglang serve aggregated`). Each round draws a few fields with values at and
beyond their bounds, beside a plain prompt. Bodies that the list refuses are counted and not sent: what is tested is
that no body that passes ends or hangs an engine. After each round a plain request has to be answered.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any, Final

import httpx
import msgspec

from tests.subjects.connections import NOT_KEPT
from warmroute_proxy.dialects.fields import Field, FieldError, FieldsReader, Permissions
from warmroute_proxy.dialects.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS

AT_ONCE: Final = 6
ANSWER_S: Final = 120.0
INTEGERS: Final = (
    -(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 16, 20, 21, 128, 129, 1000, 2**30, 2**31 - 1, 2**31, 2**63, 10**12,
)  # fmt: skip
TEMPLATE_NAMES: Final = ("thinking", "enable_thinking", "tokenize", "x", "bos_token", "raise_exception", "strftime_now")
FLOATS: Final = (-1e308, -2.0, -1.0, -0.0, 0.0, 1e-300, 1e-6, 0.5, 1.0, 1.0000001, 2.0, 100.0, 1e30, 1e308)
TEXTS: Final = (
    "", " ", "a", "x" * 1024, "\u0000", "\ud7ff\ue000", "😀" * 30, "(.+)+\u0001", "(", "root ::= root", "<|im_end|>",
    "none", "low", "high", "max", "auto", "required", "json_object", "text",
)  # fmt: skip
SCHEMAS: Final[tuple[Any, ...]] = (
    {},
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}, "required": ["a"]},
    {"$ref": "#"},
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"anyOf": [{"type": "integer"}] * 200},
    {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    {"type": "string", "minLength": 10**9},
    {"type": "integer", "minimum": -(10**30), "maximum": 10**30},
    {"enum": []},
    {"enum": ["x" * 1000] * 20},
    {"type": "nonsense"},
    {"type": ["string", "null"]},
    {"pattern": "("},
    {"type": "object", "patternProperties": {"(a*)*b": {}}},
    True,
    False,
)


def scalar(draw: random.Random) -> Any:
    """A value of any simple kind, likely at an edge."""
    kind = draw.randrange(5)
    if kind == 0:
        return draw.choice(INTEGERS)
    if kind == 1:
        return draw.choice(FLOATS)
    if kind == 2:
        return draw.choice(TEXTS)
    return draw.choice((None, True, False)) if kind == 3 else draw.uniform(-2, 2)


def value(draw: random.Random, depth: int = 0) -> Any:
    """Any JSON value."""
    kind = draw.randrange(8)
    if kind < 5 or depth > 3:
        return scalar(draw)
    size = draw.choice((0, 1, 2, 5, 40))
    if kind < 7:
        return [value(draw, depth + 1) for _ in range(size)]
    return {draw.choice((*TEXTS, "type", "x", "1", "-1", "999999")): value(draw, depth + 1) for _ in range(size)}


def fitting(draw: random.Random, name: str) -> Any:
    """A value of the kind that a field wants, within or just outside of its bounds."""
    if name == "response_format":
        schema = {"name": "s", "schema": draw.choice(SCHEMAS), "strict": draw.choice((True, False, None))}
        return draw.choice(({"type": "json_schema", "json_schema": schema}, {"type": "json_object"}, {"type": "text"}))
    if name == "tools":
        names = draw.choice(("f", "", "x" * 200, "a b", "😀"))
        function = {"name": names, "parameters": draw.choice(SCHEMAS), "strict": draw.choice((True, False))}
        return [{"type": "function", "function": function}] * draw.choice((1, 2, 30))
    if name == "tool_choice":
        return draw.choice(("auto", "required", "none", {"type": "function", "function": {"name": "f"}}))
    if name == "logit_bias":
        return {str(draw.randrange(-1, 3000)): draw.choice(FLOATS) for _ in range(draw.choice((0, 1, 50)))}
    if name == "stop_token_ids":
        return [draw.randrange(-1, 3000) for _ in range(draw.choice((0, 1, 50)))]
    if name == "stop":
        return draw.choice((draw.choice(TEXTS), [draw.choice(TEXTS) for _ in range(draw.randrange(33))]))
    if name == "chat_template_kwargs":
        return {draw.choice(TEMPLATE_NAMES): scalar(draw) for _ in range(3)}
    if name in {"reasoning", "thinking"}:
        return {"effort": draw.choice(TEXTS), "enabled": draw.choice((True, False, "yes")), "type": "enabled"}
    if name == "stream_options":
        return {"include_usage": draw.choice((True, False, None)), "continuous_usage_stats": draw.choice((True, False))}
    return scalar(draw)


def request(draw: random.Random, listed: Mapping[str, Field], *, chat: bool) -> dict[str, Any]:
    """A body: a prompt, a small limit, and a few fields."""
    body: dict[str, Any] = {"model": "tiny", "max_tokens": draw.choice((1, 4, 8))}
    if chat:
        body["messages"] = [{"role": "user", "content": draw.choice(("hello", "x " * 200, "😀"))}]
    else:
        body["prompt"] = draw.choice(("hello", ["a", "b"], [1, 2, 3], [[5], [7, 8]], [draw.randrange(-1, 3000)]))
    for name in draw.sample(sorted(listed), draw.randrange(1, 7)):
        if name not in {"model", "messages", "prompt"}:
            body[name] = fitting(draw, name) if draw.random() < 0.8 else value(draw)
    choices = body.get("n")
    if type(choices) is int and choices > 4:
        body["n"] = draw.choice((2, 3, 129))
    limit = body.get("max_tokens")
    if type(limit) is not int or limit > 16:
        body["max_tokens"] = 8
    return body


class Fuzz:
    """One run against one engine."""

    def __init__(self, client: httpx.AsyncClient, draw: random.Random, allowed: Permissions) -> None:
        self._client = client
        self._draw = draw
        self._allowed = allowed
        self.counts: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        """Those of the last round."""

    def draw_bodies(self) -> None:
        """Draw the bodies of the next round: such that the list lets pass."""
        bodies = self.bodies = []
        while len(bodies) < AT_ONCE:
            chat = self._draw.random() < 0.7
            listed = CHAT_FIELDS if chat else COMPLETION_FIELDS
            body = request(self._draw, listed, chat=chat)
            raw = msgspec.json.decode(json.dumps(body), type=dict[str, msgspec.Raw])
            try:
                dropped = FieldsReader(listed, raw).read(raw, self._allowed).dropped
            except FieldError as error:
                self.counts[f"refused: {error.code}"] += 1
                continue
            bodies.append({name: each for name, each in body.items() if name not in dropped})

    async def send(self) -> None:
        """Send the bodies of the round at once."""
        await asyncio.gather(*map(self._send, self.bodies))

    async def _send(self, body: dict[str, Any]) -> None:
        route = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        try:
            headers = {"content-type": "application/json"}
            answer = await self._client.post(route, content=json.dumps(body), headers=headers)
            self.counts[f"sent: {answer.status_code}"] += 1
            if answer.status_code >= 500:
                print(answer.status_code, answer.text[:200], json.dumps(body)[:2000], flush=True)
        except httpx.TimeoutException:
            self.counts["sent: timed out"] += 1
            print("TIMEOUT", json.dumps(body)[:2000], flush=True)

    async def lives(self) -> bool:
        """Whether a plain request is answered."""
        try:
            answer = await self._client.post(
                "/v1/completions", json={"model": "tiny", "prompt": "still there?", "max_tokens": 2}
            )
        except httpx.HTTPError:
            return False
        return answer.status_code == 200


async def fuzz(url: str, seed: int, vocabulary: int | None, *, rounds: float = inf, seconds: float = inf) -> int:
    """Run so many rounds, or so long; 1 where the engine ended or hung."""
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, limits=NOT_KEPT) as client:
        run = Fuzz(client, random.Random(seed), Permissions(vocabulary=vocabulary))
        start, done = time.monotonic(), 0
        while done < rounds and time.monotonic() < start + seconds:
            run.draw_bodies()
            try:
                await run.send()
                alive = await run.lives()
            except httpx.HTTPError as error:
                print(f"{type(error).__name__}: {error}")
                alive = False
            done += 1
            if not alive:
                print(f"seed {seed}, round {done}: the engine is gone or hangs after one of")
                for body in run.bodies:
                    print(json.dumps(body))
                return 1
    print(f"seed {seed}: {done} rounds in {time.monotonic() - start:.0f} s; {dict(sorted(run.counts.items()))}")
    return 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.field_fuzz", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, help="token ids of the model; without it, no token ids are sent")
    asked = parser.parse_args()
    return asyncio.run(fuzz(asked.url, asked.seed, asked.vocabulary, seconds=asked.minutes * 60))


if __name__ == "__main__":
    sys.exit(main())
