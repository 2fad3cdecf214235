"""Find the receipt of an answer, a chunk or a stream, wherever a library keeps it."""

from collections.abc import Mapping
from typing import cast

from warmroute._watch import watch_of
from warmroute.contract.receipt_type import Receipt


def receipt_of(answer: object) -> Receipt | None:
    """The receipt (`usage.warmroute`) of an answer of any API, of a chunk, or of a stream that has been read to its
    end; None without one. Streams of openai's `.stream()` have it, too.
    """
    response = getattr(answer, "response", None) or getattr(answer, "_response", None)
    watch = watch_of(response)
    for each in (answer, watch, response):  # an event of Responses has the answer in `response`
        usage = getattr(each, "usage", None)
        receipt = usage.get("warmroute") if isinstance(usage, Mapping) else getattr(usage, "warmroute", None)
        if isinstance(receipt, Mapping):
            return cast("Receipt", receipt)
    return None
