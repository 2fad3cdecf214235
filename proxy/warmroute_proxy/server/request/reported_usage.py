"""What the engines of an attempt have reported of its tokens."""

from typing import Any

import msgspec

from warmroute_proxy.core.accounting.usage import merge_usage, plain_usage
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.server.engines.sse import UsageTracker
from warmroute_proxy.server.request.answer import Answer
from warmroute_proxy.server.request.prefill_leg import PrefillLeg


def usage_of(
    answer: Answer | None, scanner: UsageTracker, prefill: PrefillLeg | None
) -> tuple[Usage, dict[str, Any] | bytes | None]:
    """The usage, and the answering engine's own object: as JSON where that is the same."""
    if answer is not None:
        plain = plain_usage(answer.usage, answer.sglext, paired=prefill is not None)
        if plain is not None:
            return plain, answer.usage
    own = own_usage(answer, scanner)
    return merge_usage(own, _details(answer, scanner), prefill_usage(prefill), scanner.content_events), own


def own_usage(answer: Answer | None, scanner: UsageTracker) -> dict[str, Any] | None:
    """The answering engine's usage object."""
    return scanner.usage if answer is None else _object(answer.usage)


def prefill_usage(prefill: PrefillLeg | None) -> dict[str, Any] | None:
    """The prefill engine's usage object, if its answer came."""
    if prefill is None or prefill.status != 200:
        return None
    answer = _object(b"".join(prefill.parts))
    usage = answer.get("usage") if answer else None
    return usage if isinstance(usage, dict) else None


def _details(answer: Answer | None, scanner: UsageTracker) -> dict[str, Any] | None:
    """The answering engine's cached-token details."""
    if answer is None:
        return scanner.details
    extension = _object(answer.sglext)
    found = extension.get("cached_tokens_details") if extension else None
    return found if isinstance(found, dict) else None


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
