"""Whether an engine's chat template takes a system message behind others: it is asked to render a small chat.

Templates of some models (Qwen 3.x, Gemma) raise an error there, which is a 400 or a 500. A chat without such a message
is asked for first, so that a server which renders nothing is not taken for strict.
"""

from typing import Final

import msgspec

from warmroute_proxy.server.engines.engine_headers import CONTENT_TYPE
from warmroute_proxy.server.engines.small_get import ask
from warmroute_proxy.server.engines.upstream import Upstream

PATH: Final = "/v1/tokenize"
TIMEOUT_S: Final = 2.0
_REFUSES: Final = frozenset({400, 422, 500})
_FIRST: Final = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
_LATE: Final = [*_FIRST, {"role": "assistant", "content": "c"}, {"role": "system", "content": "d"}, _FIRST[1]]
PLAIN: Final = msgspec.json.encode({"messages": _FIRST})
WITH_LATE: Final = msgspec.json.encode({"messages": _LATE})


async def refuses_late_system(upstream: Upstream, bearer: str) -> bool:
    status = await _asked(upstream, bearer, PLAIN)
    return status == 200 and await _asked(upstream, bearer, WITH_LATE) in _REFUSES


async def _asked(upstream: Upstream, bearer: str, body: bytes) -> int:
    status, _ = await ask(upstream, PATH, f"{CONTENT_TYPE}{bearer}", TIMEOUT_S, method="POST", body=body)
    return status
