"""Defines the token counts of a turn: the usual JSON forms in which engines report them, and the settled counts."""

from typing import Annotated, Final

import msgspec

MAX_TOKENS: Final = 2**31 - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Prompt = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Settled token counts of one turn; `estimated` has names from `contract.receipt.ESTIMATED_FIELDS`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    device: int
    host: int
    storage: int
    reasoning_tokens: int | None
    estimated: tuple[str, ...]
    misreported_tokens: int
    continued_after: int | None = None
    """How many tokens of the answer the first engine had sent before it broke off and another engine continued."""

    write_5m: int = 0
    """Uncached prompt tokens that the server wrote to a cache for five minutes."""

    write_1h: int = 0
    """Uncached prompt tokens that the server wrote to a cache for an hour."""


class PromptDetails(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    cached_tokens: Count
    audio_tokens: int | None = None
    text_tokens: int | None = None


class CompletionDetails(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    reasoning_tokens: Count | None = None
    audio_tokens: int | None = None
    text_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class PlainUsage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A usage object as most servers write it: with cached tokens, and without members that the proxy would replace."""

    prompt_tokens: Prompt
    completion_tokens: Count
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | None = None
    reasoning_tokens: Count | None = None


class TierDetails(msgspec.Struct, gc=False):
    device: Count | None = None
    host: Count | None = None
    storage: Count | None = None


class Extension(msgspec.Struct, gc=False):
    cached_tokens_details: TierDetails | None = None


class CachedTokens(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: Count | None = None


class Estimates(msgspec.Struct, frozen=True, gc=False):
    estimated: tuple[str, ...] = ()


class ForwardedUsage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: CachedTokens | None = None
    warmroute: Estimates = Estimates()


class ForwardedAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer, or a usage chunk, as the proxy of another region writes it; only its settled usage is read."""

    usage: ForwardedUsage
