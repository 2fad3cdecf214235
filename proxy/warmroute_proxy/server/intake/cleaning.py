"""Removes texts that would spoil a cached prefix from chat bodies, as the normalising rules of their model say.

Bodies of other APIs are cleaned when they are translated. Of all other chat bodies, only prompts of Claude Code that a
gateway has translated need the default rules. So by default only these prompts are cleaned. They are recognised by the
request's head, or by the first bytes of the body, where a system prompt begins. If some model has further rules
switched on, all chat bodies are cleaned. If a model's template takes only one system message, bodies with several
system messages are cleaned.
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
    """Whether some model has rules switched on besides the default rules and `LATE_SYSTEM`."""
    return any(model.normalise - DEFAULT_NAMES - {LATE_SYSTEM} for model in config.models)


def has_strict(config: Config) -> bool:
    """Whether some model's template takes only one system message."""
    return any(LATE_SYSTEM in model.normalise for model in config.models)


def may_need_cleaning(raw: bytes, caller: Caller, *, is_strict: bool) -> bool:
    """Whether a body looks like a prompt of Claude Code, or may have several system messages while `is_strict`.

    False for a forwarded body, because the proxy that forwarded it has cleaned it.
    """
    if caller.region is not None:
        return False
    if caller.is_claude_code or raw.find(BILLING_MARK, 0, _LOOKED_AT_BYTES) >= 0:
        return True
    return is_strict and raw.count(b'"system"') + raw.count(b'"developer"') > 1


def cleaned(raw: bytes, config: Config, work: TranslationWork) -> tuple[bytes, Changes]:
    """A chat body without the texts that its model's rules remove. Raises: Refusal, if the body is not one JSON object,
    or holds more messages than `work` allows; TooMuch, as `TranslationWork` says.
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
        model = None  # the next step that reads the body reports what is wrong
    return frozenset() if model is None else model.normalise
