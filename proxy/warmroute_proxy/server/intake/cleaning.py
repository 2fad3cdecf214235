"""Chat bodies whose texts would spoil a prefix: they are cleaned by their model's rules before they are read.

Translators clean what they translate. In chat only Claude Code's prompts have such a text by default, where a gateway
has translated them, so only those are looked into: by their head, or by the first bytes of the body, where a system
prompt begins. Where a model has other rules on, all are, and those with several system messages where its template
takes one.
"""

from typing import Final

import msgspec

from warmroute.contract.changes import NO_CHANGES, Changes
from warmroute_proxy.dialects.raw_json import BadRequest
from warmroute_proxy.dialects.work import KNOWN_PER_STEP, TranslationWork
from warmroute_proxy.normalising import chat_messages
from warmroute_proxy.normalising.rules import BILLING_MARK, DEFAULT_NAMES, LATE_SYSTEM
from warmroute_proxy.normalising.texts import Texts
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.intake.body import Body
from warmroute_proxy.server.intake.caller import Caller

_LOOKED_AT_BYTES: Final = 1024
_decode_text: Final = msgspec.json.Decoder(str).decode


def cleans_all(config: Config) -> bool:
    """Whether a model has more rules on than are by default."""
    return any(model.normalise - DEFAULT_NAMES - {LATE_SYSTEM} for model in config.models)


def has_strict(config: Config) -> bool:
    """Whether the template of a model takes one system message."""
    return any(LATE_SYSTEM in model.normalise for model in config.models)


def may_need_cleaning(raw: bytes, caller: Caller, *, is_strict: bool) -> bool:
    """Whether it looks like a prompt of Claude Code's, or may have several system messages where a model takes one.
    What another proxy forwards, it has cleaned.
    """
    if caller.region is not None:
        return False
    if caller.is_claude_code or raw.find(BILLING_MARK, 0, _LOOKED_AT_BYTES) >= 0:
        return True
    return is_strict and raw.count(b'"system"') + raw.count(b'"developer"') > 1


def cleaned(raw: bytes, config: Config, work: TranslationWork) -> tuple[bytes, Changes]:
    """A chat body without what its model's rules take out. Raises: Refusal, if it is not one JSON object, or holds
    more messages than there is `work` for; TooMuch, as `TranslationWork` says.
    """
    body = Body(raw)
    messages, texts = body.members.get("messages"), Texts(_rules(body, config))
    left = None if messages is None else _cleaned(messages, texts, work)
    if not texts.applied and not texts.off:
        return raw, NO_CHANGES
    normalised, off = texts.names()
    changes = NO_CHANGES._replace(normalised=normalised, not_normalised=off)
    if messages is None or left is None:
        return raw, changes
    end = body.spans["messages"].end
    return b"%b%b%b" % (raw[: end - len(memoryview(messages))], left, raw[end:]), changes


def _cleaned(messages: msgspec.Raw, texts: Texts, work: TranslationWork) -> bytes | None:
    def take(number: int) -> None:
        work.take(number // KNOWN_PER_STEP)

    try:
        return chat_messages.cleaned(messages, texts, take)
    except BadRequest as error:
        raise Refusal(400, str(error), code="invalid_value", param="messages") from None


def _rules(body: Body, config: Config) -> frozenset[str]:
    try:
        model = config.model_of(_decode_text(body.members.get("model", b"")))
    except (msgspec.DecodeError, UnicodeDecodeError):
        model = None  # whoever reads it next says what is wrong
    return frozenset() if model is None else model.normalise
