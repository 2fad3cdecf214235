"""Asks for another reasoning effort if a model does not take the effort that a request asks for.

Clients name efforts on the scale of a vendor, and a model may take only some of them. Claude Code asks for `high` by
default, but the chat template of Qwen3.8 takes `low`, `medium` and `xhigh`, and refuses each turn of the session. Such
a refusal usually lists the efforts that the model takes. The proxy sends the request again with the lowest of them that
is above the refused one. If there is none, it takes the highest. If the refusal lists no effort, the proxy sends none.
A server that does not know the field at all gets it no more (`dialects.unsupported`).

OpenAI's chat completions take tools together with GPT-5.6 only if the effort is `none`, also from a client that asks
for no effort.
"""

import re
from typing import Final

import msgspec

from warmroute_proxy.dialects.fields import names_of
from warmroute_proxy.dialects.unsupported import EFFORT, unsupported_in
from warmroute_proxy.server.base.engine_refusals import is_about_effort
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.intake.body import AnyBody, Body
from warmroute_proxy.server.intake.large_body import LargeBody
from warmroute_proxy.server.intake.parsed_request import ParsedRequest
from warmroute_proxy.server.request.shorter_answer import ChangedRequest

DEFAULT: Final = "default"
"""What stands for the effort of a request that asks for none."""

_SCALE: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_WORDS: Final = re.compile(r"\b(?:none|minimal|low|medium|high|xhigh|max)\b")


def with_accepted_effort(parsed: ParsedRequest, body: AnyBody, refusal: Refusal) -> ChangedRequest | None:
    """The request that an engine will accept instead of the refused one; None if its effort was not refused."""
    if refusal.status not in {400, 422} or isinstance(body, LargeBody):
        return None
    if not is_about_effort(refusal.message, refusal.param):
        return None
    asked = str(msgspec.json.decode(body.value(EFFORT) or b"null") or DEFAULT)
    changes = parsed.changes
    refused = {asked, *[name.removeprefix(f"{EFFORT}.") for name in changes.dropped_fields]}
    instead = _nearest(asked, refusal.message, refused)
    if (asked == DEFAULT and instead != "none") or (instead is None and EFFORT in unsupported_in(refusal.message)):
        return None
    field = b"" if instead is None else b'"%b":"%b"' % (EFFORT.encode(), instead.encode())
    named = names_of(frozenset({*changes.dropped_fields, f"{EFFORT}.{asked}"}))
    changed = msgspec.structs.replace(
        parsed,
        dropped=parsed.dropped - {EFFORT},  # a null that the client has sent
        nulls=parsed.nulls - {EFFORT},
        changes=changes._replace(dropped_fields=named),
    )
    return ChangedRequest(changed, Body(b"".join(body.rewritten(frozenset({EFFORT}), field))))


def _nearest(asked: str, message: str, refused: set[str]) -> str | None:
    """The effort to ask for instead, of those in the message; None if it names no other than the refused ones."""
    named = [each for each in _SCALE if each in {*_WORDS.findall(message)} - refused]
    if asked == DEFAULT:
        return "none" if "none" in named else None
    if not named or asked not in _SCALE:
        return None
    above = [each for each in named if _SCALE.index(each) > _SCALE.index(asked)]
    return above[0] if above else named[-1]
