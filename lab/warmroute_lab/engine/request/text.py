"""The text of answers: deterministic pseudo-words, or the script of the request.

The pseudo-words come from a digest of (seed, prompt, choice). So all engines with the same seed give a prompt the same
answer, and a shorter answer is a prefix of a longer one. A request may have a script in its metadata, which drives an
agent loop without a model:

    "metadata": {"script": {"text": "...", "tool_calls": [{"name": "...", "arguments": {...}}], "output_tokens": 40}}

or a list of such steps. The number of assistant messages in the prompt selects the step. If the list has no such step,
or the step is null, the answer is pseudo-words. Values may be JSON strings, since OpenAI metadata values are strings.
`error_after_tokens` in a step makes the engine fail the request with a 500 at that token.
"""

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec

from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.model import prompt

CONTENT: Final = 0
REASONING: Final = 1
CALL_HEAD: Final = 2
CALL_ARGUMENTS: Final = 3
SILENT: Final = 4

EOS_TOKEN_ID: Final = 2
DEFAULT_TOKENS_MIN: Final = 16
DEFAULT_TOKENS_SPREAD: Final = 33
MAX_SCRIPT_STEPS: Final = 1024

FinishReason = Literal["stop", "length", "tool_calls"]


class Piece(NamedTuple):
    """What one token adds to the answer."""

    kind: int
    text: str


class ScriptedCall(NamedTuple):
    """One scripted tool call; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Script:
    """One step of a script."""

    text: str | None = None
    calls: tuple[ScriptedCall, ...] = ()
    output_tokens: int | None = None
    error_after_tokens: int | None = None
    think_tokens: int | None = None


NO_SCRIPT: Final = Script()


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One choice, planned whole before its first token: what each token adds, and how it ends."""

    pieces: list[Piece]
    finish_reason: FinishReason
    matched_stop: str | int | None

    def text(self, kind: int, generated: int) -> str:
        """The text of one kind in the first `generated` tokens."""
        return "".join(piece.text for piece in self.pieces[:generated] if piece.kind == kind)

    def count(self, generated: int) -> int:
        return min(generated, len(self.pieces))

    def reasoning_tokens(self, generated: int) -> int:
        return sum(1 for piece in self.pieces[:generated] if piece.kind == REASONING)

    def calls(self, generated: int) -> list[ScriptedCall]:
        """The tool calls in the first `generated` tokens; the last one may be incomplete."""
        calls: list[ScriptedCall] = []
        for piece in self.pieces[:generated]:
            if piece.kind == CALL_HEAD:
                calls.append(ScriptedCall(piece.text, ""))
            elif piece.kind == CALL_ARGUMENTS:
                calls[-1] = ScriptedCall(calls[-1].name, calls[-1].arguments + piece.text)
        return calls

    def rendered(self) -> bytes:
        """The bytes of the answer as a later prompt contains them."""
        out: list[bytes] = []
        for piece in self.pieces:
            if piece.kind == CALL_HEAD:
                out.append(prompt.render_call(piece.text, "")[0])
            else:
                out.append(piece.text.encode())
        return b"".join(out)


def answer(
    seed_digest: bytes,
    *,
    limit: int,
    script: Script,
    stops: Sequence[str],
    thinking: bool,
    ignore_eos: bool,
    begun: str = "",
) -> ScriptedAnswer:
    """Plan one choice of at most `limit` tokens.

    If the answer planned without `begun` starts with that text, the result is the rest of that answer. Otherwise
    `begun` has no effect.
    """
    if begun:
        longer = limit + prompt.tokens(begun.encode())
        whole = answer(seed_digest, limit=longer, script=script, stops=stops, thinking=thinking, ignore_eos=ignore_eos)
        rest = _rest(whole.pieces, begun)
        if rest is not None:
            return ScriptedAnswer(rest, whole.finish_reason, whole.matched_stop)
    total = script.output_tokens or DEFAULT_TOKENS_MIN + seed_digest[0] % DEFAULT_TOKENS_SPREAD
    most = limit + 1  # even if a script orders more: one token more shows that the limit was reached
    pieces: list[Piece] = []
    if thinking:
        thought = script.think_tokens or max(1, total // 3)
        pieces += _pieces(REASONING, words(seed_digest + b"think", min(most, thought)))
    if script.text is not None:
        pieces += _pieces(CONTENT, script.text)
    elif not script.calls:
        pieces += _pieces(CONTENT, words(seed_digest, min(most, max(1, total - len(pieces)))))
    for call in script.calls:
        pieces += _call_pieces(call)
    if ignore_eos and len(pieces) < limit:
        pieces += _pieces(CONTENT, words(seed_digest + b"on", limit - len(pieces)))
    stopped = _stop_at(pieces, stops) if stops else None
    if stopped is not None and stopped[0] <= limit:
        return ScriptedAnswer(pieces[: stopped[0]], "stop", stopped[1])
    if len(pieces) > limit or ignore_eos:
        return ScriptedAnswer(pieces[:limit], "length", None)
    if not pieces:
        pieces.append(Piece(SILENT, ""))  # an empty scripted text still costs the token that ends it
    return ScriptedAnswer(pieces, "tool_calls" if script.calls else "stop", None if script.calls else EOS_TOKEN_ID)


def words(seed: bytes, count: int) -> str:
    """Pseudo-words, exactly `count` tokens long. A shorter text of the same seed is a prefix of a longer one."""
    draws = array("H", hashlib.shake_256(seed).digest(2 * count))  # a word with its space is at least one token
    return " ".join([_WORDS[draw % len(_WORDS)] for draw in draws])[: count * prompt.TOKEN_BYTES]


def seed_digest(seed: int, rendered: bytes, choice: int) -> bytes:
    return hashlib.blake2b(rendered, key=b"%d %d" % (seed, choice), digest_size=16).digest()


def read_script(body: Mapping[str, Any]) -> Script:
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("script") is None:
        return NO_SCRIPT
    try:
        steps = _loose(metadata["script"])
        if isinstance(steps, list):
            if len(steps) > MAX_SCRIPT_STEPS:
                raise ValueError("too many steps")
            turn = sum(1 for message in body.get("messages") or () if message.get("role") == "assistant")
            steps = steps[turn] if turn < len(steps) else None
        return NO_SCRIPT if steps is None else _script(steps)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError, msgspec.DecodeError) as error:
        raise Refusal(400, f"metadata.script is not a script: {error}") from None


def _script(step: dict[str, Any]) -> Script:
    text = step.get("text")
    if text is not None and not isinstance(text, str):
        raise ValueError("text is not a string")
    calls = []
    for call in _loose(step.get("tool_calls")) or ():
        arguments = call.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        calls.append(ScriptedCall(str(call["name"]), arguments))
    output_tokens = step.get("output_tokens")
    error_after = step.get("error_after_tokens")
    return Script(
        text=text,
        calls=tuple(calls),
        output_tokens=None if output_tokens is None else max(1, int(output_tokens)),
        error_after_tokens=None if error_after is None else max(1, int(error_after)),
    )


def _loose(value: Any) -> Any:
    return msgspec.json.decode(value) if isinstance(value, str) else value


def _pieces(kind: int, text: str) -> list[Piece]:
    """Cut a text into tokens. A character that spans two tokens comes with the later one."""
    step = prompt.TOKEN_BYTES
    if text.isascii():
        return [Piece(kind, text[i : i + step]) for i in range(0, len(text), step)]
    raw = text.encode()
    pieces = []
    shown = 0
    for end in range(step, len(raw) + step, step):
        upto = min(end, len(raw))
        while upto < len(raw) and raw[upto] & 0xC0 == 0x80:  # inside a character
            upto -= 1
        pieces.append(Piece(kind, raw[shown:upto].decode()))
        shown = upto
    return pieces


def _rest(pieces: list[Piece], begun: str) -> list[Piece] | None:
    """The pieces after the content `begun`; None if the content does not start with it."""
    content = ""
    for i, piece in enumerate(pieces):
        if piece.kind == CONTENT:
            content += piece.text
            if len(content) >= len(begun):
                rest = [Piece(CONTENT, content[len(begun) :])] if len(content) > len(begun) else []
                return [*rest, *pieces[i + 1 :]] or [Piece(SILENT, "")] if content.startswith(begun) else None
    return None


def _call_pieces(call: ScriptedCall) -> list[Piece]:
    head, _ = prompt.render_call(call.name, "")
    silent = prompt.tokens(head) - 1
    arguments = _pieces(CALL_ARGUMENTS, call.arguments)
    return [Piece(CALL_HEAD, call.name), *([Piece(SILENT, "")] * silent), *arguments]


def _stop_at(pieces: list[Piece], stops: Sequence[str]) -> tuple[int, str] | None:
    """Cut the content before the first stop string.

    Returns the number of tokens generated up to the end of that string, and the string; None if no stop string occurs.
    """
    content = "".join(piece.text for piece in pieces if piece.kind == CONTENT)
    found = [(at, stop) for stop in stops if stop and (at := content.find(stop)) >= 0]
    if not found:
        return None
    at, stop = min(found, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
    shown = 0
    for i, piece in enumerate(pieces):
        if piece.kind != CONTENT:
            continue
        end = shown + len(piece.text)
        if end > at:
            pieces[i] = Piece(CONTENT, piece.text[: max(0, at - shown)])
        shown = end
        if shown >= at + len(stop):
            return i + 1, stop
    return None


def _make_words() -> list[str]:
    heads, tails = "bcdfghjklmnprstvz", "aeiou"
    syllables = [head + tail for head in heads for tail in tails]
    draws = hashlib.shake_256(b"warmroute words").digest(4 * 1024)
    return [
        "".join(syllables[draw % len(syllables)] for draw in draws[i : i + 2 + draws[i] % 3])
        for i in range(0, 4 * 1024, 4)
    ]


_WORDS: Final = _make_words()
