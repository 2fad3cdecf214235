"""Merges the token counts that the legs of a turn (its prefill and decode requests) report into one consistent `Usage`.

Engines report usage in different ways. A decode engine reports the counts that its prefill engine handed over. An older
decode engine does not report these counts, or reports more cached tokens than the prompt has. An engine without cache
reporting leaves out the count of cached tokens but fills in the per-request details. The rules here, in order:

* A count of the decode leg (or of the only leg) is believed. The prefill leg's counts are used if counts are missing:
  this leg has counted the same prompt, so its numbers are measured, not guessed.
* Cached tokens: the reported count if it is above zero, else the larger of the prefill leg's count and the sum of the
  details. A reported zero is weak evidence, because engines that do not count also write it.
* Tokens written to a cache are uncached tokens, at most all of them. Only servers that charge for writing report them.
* Afterwards `0 <= cached <= prompt`, and the tiers sum to the cached tokens. Corrections are reported:
  `misreported_tokens` is the distance by which a count was out of range, and `estimated` names the numbers that no
  engine reported. A missing number is not the same as zero: it is set to 0 (or to a lower bound that was counted) *and*
  named in `estimated`.

If a request ran and no engine counted its prompt, it is charged for the tokens that placement expected
(`with_expected`). Otherwise a client that leaves before the count arrives would get its computation for free.

For several answers to one prompt (`n` > 1), engines report the cached tokens of a later answer. These include the
prompt that was just computed for the first answer. Thus a request for two answers would get a new prompt at the price
of a cached one. So the cached tokens of such a request are limited to what placement expected in the cache
(`before_answers`).

A prompt has at least one token. An engine that reports zero has not counted, because the request was aborted or refused
while it waited. Then neither the prompt tokens nor the cached tokens are known.

Almost every report is complete and needs no correction: `plain_usage` decodes such reports by types and leaves all
others to `merge_usage`. Without `plain_usage`, benchmark w1 executes 7.0 % more instructions: see
docs/decisions/020-one-way.md (`python -m bench instructions --workloads w1`).

A count is an integer from 0 to `MAX_TOKENS`; any other JSON value is not a count. The bound keeps every amount of money
derived from a count inside 64 bits.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from warmroute.contract.receipt import ESTIMATED_FIELDS, TIERS
from warmroute_proxy.core.accounting.losses import ESTIMATE_ERROR
from warmroute_proxy.core.accounting.usage_fields import MAX_TOKENS, Extension, PlainUsage, Usage

_WRITTEN: Final = ("cache_write_tokens", "cache_creation_tokens")
"""Members of `prompt_tokens_details` that count tokens written to a cache: OpenRouter's (openrouter.ai/docs/use-cases/
usage-accounting) and LiteLLM's (docs.litellm.ai/docs/completion/prompt_caching)."""

_NO_TIERS: Final = [None, None, None]
_OTHER_CACHED: Final = ("prompt_cache_hit_tokens", "cached_tokens")
"""DeepSeek's name for cached tokens (api-docs.deepseek.com/guides/kv_cache) and Moonshot's (platform.moonshot.ai/docs),
both members of the usage object itself."""


NOTHING: Final = Usage(
    0, 0, 0, 0, 0, 0, None, ("prompt_tokens", "completion_tokens", "cached_tokens", "cached_tiers"), 0
)
"""The usage of a turn for which no engine reported anything."""


_plain: Final = msgspec.json.Decoder(PlainUsage).decode
_extension: Final = msgspec.json.Decoder(Extension).decode


def plain_usage(reported: bytes, extension: bytes, *, paired: bool) -> Usage | None:
    """The result of `merge_usage` for a report whose counts are complete and consistent; None for any other report.

    `reported`: the usage object of the decode or aggregated leg, as JSON. `extension`: its `sglext`, or empty.
    `paired`: whether there was a prefill leg. If the result is not None, its counts equal those of `reported`.
    """
    try:
        plain = _plain(reported)
        details = _extension(extension).cached_tokens_details if extension else None
    except msgspec.DecodeError:
        return None
    prompt, completion, cached = plain.prompt_tokens, plain.completion_tokens, plain.prompt_tokens_details.cached_tokens
    if cached > prompt or plain.total_tokens != prompt + completion or (paired and not cached) or b" " in reported:
        return None
    nested = plain.completion_tokens_details
    reasoning = plain.reasoning_tokens
    if nested is not None and nested.reasoning_tokens is not None:
        reasoning = nested.reasoning_tokens
    if details is None:
        estimated = ("cached_tiers",) if cached else ()
        return Usage(prompt, completion, cached, cached, 0, 0, reasoning, estimated, 0)
    device, host, storage = details.device or 0, details.host or 0, details.storage or 0
    if device + host + storage != cached:
        return None
    return Usage(prompt, completion, cached, device, host, storage, reasoning, (), 0)


def merge_usage(
    reported: Mapping[str, Any] | None,
    details: Mapping[str, Any] | None,
    prefill: Mapping[str, Any] | None,
    completion_seen: int,
) -> Usage:
    """Merge the reports of a turn. They are parsed JSON of any shape; a report that is not a `dict` is ignored.

    `reported`: the usage object of the decode or aggregated leg. `details`: its `sglext.cached_tokens_details`.
    `prefill`: the usage object of the prefill leg. `completion_seen`: a lower bound of the answer's tokens, counted in
    the stream.
    """
    counts = _in_openai_terms(reported) if isinstance(reported, dict) else {}  # an ABC takes ten times as long
    helper: Mapping[str, Any] = prefill if isinstance(prefill, dict) else {}
    estimated = []

    prompt = _count(counts.get("prompt_tokens")) or _count(helper.get("prompt_tokens")) or None
    if prompt is None:
        estimated.append("prompt_tokens")

    completion = _count(counts.get("completion_tokens"))
    if completion is None:
        completion = min(max(completion_seen, 0), MAX_TOKENS)
        estimated.append("completion_tokens")

    tiers = None if details is None else _tiers(details)
    stated = _stated_cached(counts)
    if stated is not None and prompt is not None and 0 < stated <= prompt:  # nothing to fill in, nothing to correct
        cached: int | None = stated
        misreported = 0
    else:
        cached, misreported = _cached(stated, _stated_cached(helper), tiers, prompt)
    if cached is None or misreported:
        estimated.append("cached_tokens")
    device, host, storage, exact = _split(cached or 0, tiers)
    if cached is None or not exact:
        estimated.append("cached_tiers")
    return Usage(
        prompt or 0,
        completion,
        cached or 0,
        device,
        host,
        storage,
        _reasoning(counts),
        tuple(estimated),
        misreported,
        None,
        *_written(counts, (prompt or 0) - (cached or 0)),
    )


def _in_openai_terms(counts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The counts under OpenAI's names; Anthropic's (which add up to the prompt) and the Responses API's are
    converted.
    """
    if "input_tokens" not in counts or "prompt_tokens" in counts:
        return counts
    read, written = _count(counts.get("cache_read_input_tokens")), _count(counts.get("cache_creation_input_tokens"))
    prompt, completion = _count(counts.get("input_tokens")), _count(counts.get("output_tokens"))
    details = counts.get("input_tokens_details")
    if read is not None or written is not None:
        prompt = None if prompt is None else prompt + (read or 0) + (written or 0)
        details = {} if read is None else {"cached_tokens": read}
    thoughts = counts.get("output_tokens_details")
    return {**counts, "prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details,
            "completion_tokens_details": thoughts}  # fmt: skip


def with_expected(usage: Usage, prompt_tokens: int, cached: tuple[int, int, int], completion_tokens: int) -> Usage:
    """The usage of a prompt that no engine has counted, filled with the tokens that placement expected.

    `cached`: the expected cached tokens by tier. `completion_tokens`: a lower bound for an answer that no engine
    counted. All names in `estimated` stay there.
    """
    prompt = min(prompt_tokens, MAX_TOKENS)
    device, host, storage = cached
    device = min(device, prompt)
    host = min(host, prompt - device)
    storage = min(storage, prompt - device - host)
    guessed = {*usage.estimated, "prompt_tokens", "cached_tokens", "cached_tiers"}
    completion = usage.completion_tokens
    if "completion_tokens" in guessed:
        completion = min(max(completion, completion_tokens), MAX_TOKENS)
    return msgspec.structs.replace(
        usage,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=device + host + storage,
        device=device,
        host=host,
        storage=storage,
        write_5m=0,
        write_1h=0,
        estimated=tuple(name for name in ESTIMATED_FIELDS if name in guessed),
    )


def before_answers(usage: Usage, cached: tuple[int, int, int], page_tokens: int) -> Usage:
    """The usage of a request for several answers, limited to the tokens cached before the first answer.

    `cached`: what placement expected in the cache, by tier. A report is believed if it is within the error of that
    estimate.
    """
    expected = sum(cached)
    if usage.cached_tokens <= expected * (1 + ESTIMATE_ERROR) + page_tokens:
        return usage
    device, host, storage = cached
    guessed = {*usage.estimated, "cached_tokens", "cached_tiers"}
    return msgspec.structs.replace(
        usage,
        cached_tokens=expected,
        device=device,
        host=host,
        storage=storage,
        estimated=tuple(name for name in ESTIMATED_FIELDS if name in guessed),
    )


def _count(value: object) -> int | None:
    if type(value) is int and 0 <= value <= MAX_TOKENS:
        return value
    return None


def _stated_cached(usage: Mapping[str, Any]) -> int | None:
    """The cached count as stated, even if out of range: a wrong count is treated differently from a missing one."""
    details = usage.get("prompt_tokens_details")
    value = details.get("cached_tokens") if isinstance(details, dict) else None
    if value is None:
        value = next((usage[name] for name in _OTHER_CACHED if usage.get(name) is not None), None)
    if type(value) is not int:
        return None
    return max(-MAX_TOKENS, min(value, MAX_TOKENS))


def _cached(
    stated: int | None, helper: int | None, tiers: tuple[int, int, int] | None, prompt: int | None
) -> tuple[int | None, int]:
    """(cached tokens, or None if no engine counted them; the distance by which the count was out of range)."""
    if prompt is None:
        return None, 0
    count = stated
    if stated is None or stated <= 0:
        others = [value for value in (helper, sum(tiers) if tiers else None) if value is not None and value >= 0]
        if others:
            count = max(others) if stated is None else max(stated, *others)
    if count is None:
        return None, 0
    clamped = min(max(count, 0), prompt)
    return clamped, min(abs(count - clamped), MAX_TOKENS)


def _written(counts: Mapping[str, Any], uncached: int) -> tuple[int, int]:
    """The uncached tokens that were written to a cache for five minutes, and for an hour.

    If only a total is reported, it counts as written for five minutes: Anthropic's default (platform.claude.com/docs,
    prompt caching).
    """
    details = counts.get("prompt_tokens_details")
    named: Mapping[str, Any] = details if isinstance(details, dict) else {}
    total = 0
    for name in _WRITTEN:
        total = total or _count(named.get(name)) or 0
    total = total or _count(counts.get("cache_creation_input_tokens")) or 0
    divided = named.get("cache_creation_token_details") or counts.get("cache_creation")
    if not isinstance(divided, dict):
        return min(total, uncached), 0
    for_hour = _count(divided.get("ephemeral_1h_input_tokens"))
    for_minutes = _count(divided.get("ephemeral_5m_input_tokens"))
    write_1h = min(for_hour or 0, uncached)
    return min(max(total - write_1h, for_minutes or 0), uncached - write_1h), write_1h


def _tiers(details: object) -> tuple[int, int, int] | None:
    """(device, host, storage) of a details object; None if it has no count at all, or an invalid one."""
    if not isinstance(details, dict):
        return None
    stated = [details.get(name) for name in TIERS]
    device, host, storage = (0 if value is None else _count(value) for value in stated)
    if device is None or host is None or storage is None or stated == _NO_TIERS:
        return None
    return device, host, storage


def _split(cached: int, tiers: tuple[int, int, int] | None) -> tuple[int, int, int, bool]:
    """(device, host, storage, whether the engine reported these tiers); if it did not, device gets the remaining
    tokens.
    """
    if tiers is None:
        return cached, 0, 0, cached == 0
    if sum(tiers) == cached:
        return *tiers, True
    _, host, storage = tiers
    host = min(host, cached)
    storage = min(storage, cached - host)
    return cached - host - storage, host, storage, False


def _reasoning(counts: Mapping[str, Any]) -> int | None:
    details = counts.get("completion_tokens_details")
    nested = _count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
    return nested if nested is not None else _count(counts.get("reasoning_tokens"))
