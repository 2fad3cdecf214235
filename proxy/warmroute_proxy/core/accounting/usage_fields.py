"""Token counts of a turn: the usual JSON forms of engines, and the settled counts."""

from typing import Annotated, Final

import msgspec

MAX_TOKENS: Final = 2**31 - 1

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Prompt = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Settled token counts of one turn; `estimated` holds names of `contract.receipt.ESTIMATED_FIELDS`."""

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
    """Tokens of the answer that a broken engine had sent before another one continued it."""

    write_5m: int = 0
    """Uncached tokens of the prompt that the server wrote to a cache that lives for five minutes."""

    write_1h: int = 0
    """The same, for an hour."""


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
    """A usage object as servers write it, with cached tokens in it and nothing that the receipt would replace."""

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
