"""Turns a prompt into a chain of 64-bit hashes over its parts, in the order in which a template prints them.

An engine caches prefixes of the *rendered* prompt: tools first, then messages. The proxy cannot hash the request body
instead: agent programs send messages before tools, move `cache_control` markers from turn to turn, and write a text now
as a string, now as a list with one part. So each part (a tool, a message) gets a canonical form, and the chain is

    h[0] = xxh3_64(block[0], seed),    h[i] = xxh3_64(block[i], seed = h[i - 1])

A block is a whole part, or a piece of `STRIDE_BYTES` of a longer part. The end of each block is a cut. Equal hashes at
cut i mean equal prompts up to cut i, except for 64-bit collisions. A collision can only misplace a request of the same
tenant: the seed is made from the tenant's salt and the model, so chains of two tenants have nothing in common.

Because long parts are cut, the beginning of such a part is still recognised if its end is changed or extended. On
recorded agent bodies a stride of 2,048 bytes takes 50 us per 100 KB, a stride of 4,096 takes 45 us. But with 2,048 a
change loses on average only 1 KB of the known prefix instead of 2 KB, a difference of a few pages of an engine's cache.

Limits: a prompt with more than `MAX_PARTS` tools or more than `MAX_PARTS` messages is a `MalformedPrompt`. The hash
chains of `MAX_KEPT_TOOLS` tool lists are cached by digest, because reading tools is a third of the work. A full cache
is emptied.
"""

import codecs
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from warmroute.contract.conversations import MAX_ASKED_BYTES
from warmroute_proxy.core.prompt.addresses import Addresses
from warmroute_proxy.core.prompt.canonical import (
    BRACKET,
    MAX_PARTS,
    MEDIA,
    NO_PARTS,
    QUOTE,
    MalformedPrompt,
    decode_part,
    is_present,
    message_part,
    text_part,
    tool_parts,
)
from warmroute_proxy.core.prompt.chain import Begun, Chain, Fingerprint, ToolsPrefix, UserPart
from warmroute_proxy.core.prompt.messages import ASSISTANT, OTHER, TOOL, USER, Message

STRIDE_BYTES: Final = 2048
MAX_KEPT_TOOLS: Final = 512
MAX_KEPT_TOOL_CUTS: Final = 1024

_LEADING: Final = frozenset({"system", "developer"})


NO_TOOLS: Final = ToolsPrefix((), (), 0)

_MESSAGES: Final = msgspec.json.Decoder(list[Message])
_ONE_MESSAGE: Final = msgspec.json.Decoder(Message)
_KEPT_TOOLS: Final[dict[tuple[int, bytes], ToolsPrefix]] = {}
_TOKEN_IDS: Final = re.compile(rb"\[[ \t\r\n]*[-0-9]")
_new_decoder: Final = codecs.getincrementaldecoder("utf-8")
_WINDOW_BYTES: Final = 1_048_576
_VALUES: Final = msgspec.json.Decoder(list[Raw])


def fingerprint_chat(
    tools: Raw | None, messages: Raw | Sequence[Raw], seed: int, addresses: Addresses | None = None
) -> Fingerprint:
    """The fingerprint of a chat prompt. `addresses`: the addresses that it may contain. Raises: MalformedPrompt.

    If `messages` is one raw JSON array, this is twice as fast as for a list of raw items, because the array is read
    once.
    """
    prefix = tools_prefix(tools, seed)
    return _fingerprint(_decode_messages(messages), prefix, None, seed, addresses)


def fingerprint_messages(
    messages: memoryview, prefix: ToolsPrefix, seed: int, addresses: Addresses | None = None
) -> Fingerprint:
    """`fingerprint_chat` for the raw JSON of messages, if the chain of the tools before them is known."""
    return _fingerprint(_checked(decode_part(_MESSAGES, messages, "messages")), prefix, None, seed, addresses)


def fingerprint_rest(rest: bytes, begun: Begun, prefix: ToolsPrefix, addresses: Addresses | None = None) -> Fingerprint:
    """The fingerprint of a prompt whose first messages are known. `rest`: the raw JSON array of the other messages."""
    if not begun.hashes:
        raise MalformedPrompt("messages", "is empty")
    return _fingerprint(_checked(decode_part(_MESSAGES, rest, "messages")), prefix, begun, 0, addresses)


def _fingerprint(
    decoded: list[Message], prefix: ToolsPrefix, begun: Begun | None, seed: int, addresses: Addresses | None
) -> Fingerprint:
    """The fingerprint of all messages, or of `begun` and the messages after it (not leading system messages)."""
    leading = begun is None
    if begun is None:
        hashes, ends, structural_bytes, turn, digest = list(prefix.hashes), list(prefix.ends), 0, 1, prefix.digest
        user: UserPart | None = None  # the previous message, if it is a user's
        returned: list[UserPart] = []
        messages: list[int] = []
        opaque = False
    else:
        hashes, ends, structural_bytes, turn, digest, user, returned, messages, opaque = begun
    hash_, total = (hashes[-1], ends[-1]) if hashes else (seed, 0)
    user_contents: list[Raw] = []
    for index, message in enumerate(decoded):
        role = message.role
        if (part := text_part(message)) is None:
            part = message_part(message, index, addresses)
            opaque = opaque or MEDIA in part
        if role == "user":
            number = USER
            user = (len(hashes), hash_, part)
            if turn == 1:
                user_contents.append(message.content)
        else:
            number = TOOL if role == "tool" else OTHER
            if role == "assistant":
                number = ASSISTANT
                structural_bytes = total
                turn += 1
                if user is not None and _is_short(user):
                    returned.append(user)
            user = None
        size = len(part)
        if leading and (leading := role in _LEADING):
            digest = xxh3_64_intdigest(part, digest)
        if size <= STRIDE_BYTES:
            hash_ = xxh3_64_intdigest(part, hash_)
            total += size
            hashes.append(hash_)
            ends.append(total)
        else:
            _add(part, hashes, ends, seed)
            hash_, total = hashes[-1], ends[-1]
        messages.append(4 * len(hashes) + number)
    _check_unicode(user_contents)
    chain = Chain(hashes, ends)
    return Fingerprint(chain, structural_bytes, turn, prefix.digest, digest, user, returned, 1, messages, opaque)


def _is_short(user: UserPart) -> bool:
    """Whether a user's message is short enough to be remembered (`MAX_ASKED_BYTES`)."""
    _, _, asked = user
    return len(asked) <= MAX_ASKED_BYTES


def _add(part: bytes, hashes: list[int], ends: list[int], seed: int) -> None:
    """Append a part to a chain, with cuts at its end and every `STRIDE_BYTES` inside it."""
    hash_, total = (hashes[-1], ends[-1]) if hashes else (seed, 0)
    size = len(part)
    if size <= STRIDE_BYTES:
        hashes.append(xxh3_64_intdigest(part, hash_))
        ends.append(total + size)
        return
    view = memoryview(part)
    for start in range(0, size, STRIDE_BYTES):
        hash_ = xxh3_64_intdigest(view[start : start + STRIDE_BYTES], hash_)
        hashes.append(hash_)
    ends.extend(range(total + STRIDE_BYTES, total + size, STRIDE_BYTES))
    ends.append(total + size)


def fingerprint_text(prompt: Raw, seed: int) -> Fingerprint:
    """The fingerprint of a `/v1/completions` prompt: the raw JSON of a string, a list of strings, or token ids.

    An empty prompt, even as one of several, crashes the scheduler of SGLang 0.5.23. So empty prompts are refused here.
    """
    raw = bytes(prompt)
    if raw == b'""':
        raise MalformedPrompt("prompt", "is empty")
    if raw[:1] == b'"':
        parts: Iterable[bytes] = (raw,)
        prompts = 1
    elif _TOKEN_IDS.match(raw) is not None:  # the ids are not decoded: there may be a million
        parts = (raw,)
        prompts = 1
    else:
        values = decode_part(_VALUES, prompt, "prompt")
        if not values:
            raise MalformedPrompt("prompt", "is empty")
        kind = memoryview(values[0])[0]
        prompts = len(values) if kind in {QUOTE, BRACKET} else 1
        if prompts > MAX_PARTS:
            raise MalformedPrompt("prompt", f"holds more than {MAX_PARTS} prompts")
        if kind in {QUOTE, BRACKET}:
            _check_none_empty(values)
        parts = map(bytes, values) if kind == QUOTE else (raw,)
    hashes: list[int] = []
    ends: list[int] = []
    for part in parts:
        _add(part, hashes, ends, seed)
    return Fingerprint(Chain(hashes, ends), 0, 1, 0, 0, prompts=prompts)


def _check_none_empty(prompts: Sequence[Raw]) -> None:
    for index, prompt in enumerate(prompts):
        if bytes(prompt).strip(b"[] \t\r\n") in NO_PARTS:
            raise MalformedPrompt(f"prompt[{index}]", "is empty")


def _decode_messages(messages: Raw | Sequence[Raw]) -> list[Message]:
    if isinstance(messages, Raw):
        decoded = decode_part(_MESSAGES, messages, "messages")
    else:
        decoded = [decode_part(_ONE_MESSAGE, raw, f"messages[{index}]") for index, raw in enumerate(messages)]
    return _checked(decoded)


def _checked(decoded: list[Message]) -> list[Message]:
    if not decoded:
        raise MalformedPrompt("messages", "is empty")
    if len(decoded) > MAX_PARTS:
        raise MalformedPrompt("messages", f"holds more than {MAX_PARTS} items")
    return decoded


def tools_prefix(tools: Raw | None, seed: int) -> ToolsPrefix:
    """The chain over the tools, cached because an agent sends equal tools in every turn. Raises: MalformedPrompt."""
    if tools is None or not is_present(tools):
        return NO_TOOLS
    key = (seed, xxh3_128_digest(tools))
    prefix = _KEPT_TOOLS.get(key)
    if prefix is None:
        hashes: list[int] = []
        ends: list[int] = []
        digest = 0
        for part in tool_parts(tools):
            _add(part, hashes, ends, seed)
            digest = xxh3_64_intdigest(part, digest)
        prefix = ToolsPrefix(tuple(hashes), tuple(ends), digest)
        if len(_KEPT_TOOLS) >= MAX_KEPT_TOOLS:
            _KEPT_TOOLS.clear()
        if len(prefix.hashes) <= MAX_KEPT_TOOL_CUTS:
            _KEPT_TOOLS[key] = prefix
    return prefix


def _check_unicode(contents: list[Raw]) -> None:
    """Refuse a prompt if the user messages at its beginning are not UTF-8, because no engine could decode it. The JSON
    decoder checks the syntax of raw slices, but not their UTF-8.
    """
    for content in reversed(contents):
        view = memoryview(content)
        try:
            if len(view) <= _WINDOW_BYTES:
                str(view, "utf-8")
            else:  # a long text is decoded in pieces, to avoid a copy of the whole
                decode = _new_decoder().decode
                for at in range(0, len(view), _WINDOW_BYTES):
                    decode(view[at : at + _WINDOW_BYTES])
                decode(b"", True)
        except UnicodeDecodeError:
            raise MalformedPrompt("messages", "holds a text that is not valid JSON") from None
        if len(view) > 2 and view[0] == QUOTE:
            return
