"""Mends small faults in refused chats and completions, so that these can be served.

The faults are halves of surrogate pairs, a model that only the path names, and the faults that
`dialects/chat_history.py` and `dialects/chat_members.py` know. Only refused requests are examined, so other requests
are not slowed down.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from warmroute.contract.changes import Changes
from warmroute_proxy.dialects import chat_history, chat_members
from warmroute_proxy.dialects.chat_answers import has_surrogate, whole_pairs
from warmroute_proxy.dialects.raw_json import BadRequest, encode
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.intake.body import Body

_CODES: Final = ("invalid_json", "invalid_type", "invalid_value")


def mended(refusal: Refusal, raw: bytes, work: TranslationWork, deployment: str) -> tuple[bytes, Mapping[str, int]]:
    """The mended body, and how many parts of its messages were dropped or changed, by type. `deployment`: the model of
    a body without a model; empty if there is none.

    Raises: `refusal`, if the body cannot be mended; TooMuch, as `TranslationWork` says.
    """
    lacks_model = bool(deployment) and (refusal.code, refusal.param) == ("missing_field", "model")
    if refusal.code not in _CODES and not lacks_model:
        raise refusal
    whole = whole_pairs(raw) if has_surrogate(raw) else raw
    body = Body(whole)
    try:
        changed = chat_members.mended(body.members, work)
        if lacks_model:
            changed["model"] = Raw(encode(deployment))
        if changed:
            add = encode({name: value for name, value in changed.items() if value is not None})[1:-1]
            whole = b"".join(body.rewritten(frozenset(changed), add))
            body = Body(whole)
        messages = body.members.get("messages")
        found = None if messages is None else chat_history.mended(messages, work)
    except BadRequest:
        if not lacks_model:
            raise refusal from None
        return whole, {}
    if messages is None or found is None:
        if whole == raw:
            raise refusal
        return whole, {}
    left, dropped = found
    end = body.spans["messages"].end
    return b"%b%b%b" % (whole[: end - len(memoryview(messages))], left, whole[end:]), dropped


def with_dropped(changes: Changes, dropped: Mapping[str, int]) -> Changes:
    return changes._replace(dropped_blocks={**changes.dropped_blocks, **dropped}) if dropped else changes
