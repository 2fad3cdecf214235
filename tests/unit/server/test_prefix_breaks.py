"""With which earlier prompts a prompt is compared."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.core.test_router import routing

from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.prompt.fingerprint import fingerprint_chat
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.server.intake.body import Body
from warmroute_proxy.server.intake.prefix_breaks import Looked, PrefixBreaks

HERE = cast("Decision", SimpleNamespace(cache_worker="a", region="east"))


def attempt(session: int, *answers: str, derived: bool) -> tuple[RoutingRequest, list[int], Body]:
    """A turn of an attempt at one task, in a session of its own."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Solve the task. " * 500}]
    for answer in answers:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on. " * 200}]
    raw = msgspec.json.encode(messages)
    found = fingerprint_chat(None, msgspec.Raw(raw), 7)
    asked = replace(routing(turn=1 + len(answers)), lineage=session, session=session, derived=derived)
    return replace(asked, chain=found.chain), found.messages, Body(b'{"messages":%b}' % raw)


@pytest.mark.parametrize("derived", [True, False], ids=["without a key", "with a key"])
def test_only_a_conversation_without_a_session_key_is_compared_with_another_sessions_prompt(derived: bool) -> None:
    breaks = PrefixBreaks(1 << 20)
    asked, messages, body = attempt(1, "I try this.", derived=derived)
    looked = breaks.look(asked, messages, body, "")
    assert looked is not None
    breaks.remember(asked, messages, looked, Usage(3_000, 10, 0, 0, 0, 0, None, (), 0), HERE)
    asked, messages, body = attempt(2, "I try that.", "It failed.", derived=derived)
    looked = breaks.look(asked, messages, body, "")
    assert isinstance(looked, Looked)
    assert (looked.found is not None) is derived
