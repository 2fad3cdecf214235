"""Reads whole answers of engines, and writes them again with the settled (billed) usage in place of the engine's.

An answer is decoded once into raw members, and written again from these. Decoding loses a member whose name occurs
twice. So an answer whose length changes when it is written again is searched for a repeated name, member by member. In
a sound answer only spaces, or escapes in names, could change the length, and engines write neither.

Members that have another type than in OpenAI's own answers are dropped (`dialects/openai_answers.py`).
"""

from typing import Any, Final, NamedTuple

import msgspec

from warmroute_proxy.core.accounting.usage import merge_usage, plain_usage
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.dialects.call_numbers import with_ids
from warmroute_proxy.dialects.chat_answers import has_surrogate, whole_pairs, with_null
from warmroute_proxy.dialects.chunk_view import (
    ABSENT,
    decoded,
    generated_bytes,
    is_filled,
    most_output_bytes,
    nested_text_bytes,
    read_choices,
    thoughts_in,
)
from warmroute_proxy.dialects.openai_answers import CHECKED, drop_other_types
from warmroute_proxy.dialects.work import MAX_CALLS
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.engines.server_info import json_object
from warmroute_proxy.server.engines.sse import ABORT, ENDS_IN_TOOLS, UsageTracker
from warmroute_proxy.server.http.body_memory import BodyReservation
from warmroute_proxy.server.intake.body import Body
from warmroute_proxy.server.request.prefill_leg import PrefillLeg

_OWN: Final = ("usage",)
_OWN_ACCOUNTS: Final = ("usage", "sglext")
_EMPTY: Final = msgspec.Raw(b"")
_BRACKET: Final = 0x5B


_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


class AnswerBound(NamedTuple):
    max_bytes: int
    memory: BodyReservation | None


def _sound(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """Mend half surrogate pairs and NaN, which some servers write. Returns the members and the mended answer.
    Raises: Refusal, if the answer is not a JSON object.
    """
    try:
        sound = whole_pairs(raw) if has_surrogate(raw) else with_null(raw)
        return _decode(sound), sound
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise Refusal(400, "the answer is not a JSON object", code="invalid_json") from None


class Answer:
    """One answer. `usage` and `sglext` (SGLang's extension) are JSON, empty if the engine wrote none."""

    __slots__ = ("_choices", "_members", "aborted", "empty", "is_one", "sglext", "usage")

    def __init__(self, raw: bytes, rid: str = "") -> None:
        """Read an answer. `rid`: the engine's request id, from which missing ids of tool calls are made. Raises:
        Refusal, if the answer is not one JSON object with distinct names.
        """
        try:
            members: dict[str, Any] = _decode(raw)
            sound = raw
        except (msgspec.DecodeError, RecursionError):
            members, sound = _sound(raw)
        self._members = members
        if len(_encode(members)) != len(sound):
            Body(sound)
        choices = self._choices = read_choices(members.get("choices", _EMPTY))
        usage = members.get("usage", _EMPTY)
        if usage is _EMPTY and choices:
            usage = choices[0].usage  # Moonshot writes the usage into the choice
        self.usage = bytes(usage)
        self.sglext = bytes(members.get("sglext", _EMPTY))
        self.is_one = bool(choices)
        """Whether this is a real answer: with choices, none of them an error."""

        self.aborted = False
        """Whether the engine aborted a choice."""

        empty, has_calls = True, False
        for choice in choices:
            reason = choice.finish_reason
            if reason == ABORT:
                self.aborted = True
            elif choice.fault() is not None:
                self.is_one = False
            message = choice.message
            if message is not None:
                if empty and is_filled(message.get("content", ABSENT)):
                    empty = False
                calls = message.get("tool_calls")
                if calls is not None and memoryview(calls)[0] == _BRACKET:
                    has_calls = True
            if empty and choice.outputs():
                empty = False
        self.empty = empty
        """Whether the model has generated neither text nor a tool call."""

        if has_calls:
            self._number_calls(rid)

    def _number_calls(self, rid: str) -> None:
        raw = bytes(self._members["choices"])
        if raw.count(b'"function"') > 2 * MAX_CALLS * len(self._choices):
            self.is_one = False  # more calls of tools than any model makes: not a real answer
            return
        found = with_ids(raw, rid)
        if found is not None:
            self._members["choices"] = msgspec.Raw(found)

    @property
    def called_tools(self) -> bool:
        return self._choices[0].finish_reason in ENDS_IN_TOOLS if self._choices else False

    @property
    def thoughts(self) -> str:
        """The name of the member that holds what the model thinks; empty if the answer has no such member."""
        return thoughts_in(self._choices[0].outputs()) if self._choices else ""

    def text_bytes(self) -> int:
        """The length of all generated texts, by which tokens are estimated if the engine has counted none."""
        return generated_bytes(self._choices) or nested_text_bytes(decoded(self._members.get("choices", _EMPTY)))

    def output_bytes(self) -> int:
        """The bytes of JSON that all output of the model takes. Each token takes at least one."""
        return most_output_bytes(self._choices) or self.text_bytes()

    def choices(self) -> bytes:
        return b'{"choices":%b}' % bytes(self._members.get("choices", b"[]"))

    def settled(self, usage: bytes | msgspec.Raw, *, keep_sglext: bool) -> bytes:
        """The answer with `usage` as its last member, and without the engine's `usage` and, unless kept, `sglext`."""
        members: dict[str, Any] = self._members
        if not CHECKED.isdisjoint(members):
            drop_other_types(members)
        for name in _OWN if keep_sglext else _OWN_ACCOUNTS:
            members.pop(name, None)
        members["usage"] = usage if type(usage) is msgspec.Raw else msgspec.Raw(usage)
        return _encode(members)


def usage_of(
    answer: Answer | None, scanner: UsageTracker, prefill: PrefillLeg | None
) -> tuple[Usage, dict[str, Any] | bytes | None]:
    """The usage of a turn, and the usage object that the answering engine wrote: as JSON bytes, or parsed."""
    if answer is not None:
        plain = plain_usage(answer.usage, answer.sglext, paired=prefill is not None)
        if plain is not None:
            return plain, answer.usage
    own = own_usage(answer, scanner)
    return merge_usage(own, _details(answer, scanner), prefill_usage(prefill), scanner.tokens_seen), own


def own_usage(answer: Answer | None, scanner: UsageTracker) -> dict[str, Any] | None:
    return scanner.usage if answer is None else json_object(answer.usage)


def prefill_usage(prefill: PrefillLeg | None) -> dict[str, Any] | None:
    if prefill is None or prefill.status != 200:
        return None
    answer = json_object(b"".join(prefill.parts))
    usage = answer.get("usage") if answer else None
    return usage if isinstance(usage, dict) else None


def _details(answer: Answer | None, scanner: UsageTracker) -> dict[str, Any] | None:
    if answer is None:
        return scanner.details
    extension = json_object(answer.sglext)
    found = extension.get("cached_tokens_details") if extension else None
    return found if isinstance(found, dict) else None
