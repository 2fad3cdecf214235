"""What reading a request costs: the CPU seconds from its body to an `Intake`, in this process."""

import json
import time
from typing import Any, Final

from tests.fuzz.body_template import CONFIG, SECRETS, TENANT
from warmroute.contract.conversations import Conversations
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects.translation import translated_body
from warmroute_proxy.server.intake.caller import Callers
from warmroute_proxy.server.intake.cleaning import cleaned
from warmroute_proxy.server.intake.intake import CHAT, read_whole

MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"
GEMINI: Final = "/v1beta/models/m:generateContent"
TERMS: Final = Terms(TENANT, SECRETS, CONFIG)


def cost_s(path: str, body: dict[str, Any]) -> float:
    """CPU seconds of one body."""
    raw = json.dumps(body).encode()
    callers = Callers(SECRETS, Conversations("x"))
    caller = callers.of(CHAT, TENANT, {"x-claude-code-session-id": "s"})
    began = time.process_time()
    try:
        if path == CHAT:
            raw, _ = cleaned(raw, CONFIG)
        else:
            raw = translated_body(path, b"", raw, TERMS).body
        read_whole(raw, caller, callers, CONFIG)
    except Refusal:
        pass
    return time.process_time() - began
