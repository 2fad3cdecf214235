"""Hints of a client between two turns of its session.

POST /v1/sessions/expect    has no body; headers name the session, as on its turns, and say what to expect

The header `x-warmroute-expect` says `end` or `human`. `end` ends the protection of the session's KV in the working set
(the sessions whose KV workers should keep); `human` says that the session waits for a person. A session is found by a
hash that depends on its tenant, so an API key of another tenant names another session. The answer is the same whether
or not the session is known.
"""

from collections.abc import Callable, Mapping
from typing import Final

from fastapi import FastAPI, Request, Response

from warmroute.contract import headers as names
from warmroute.contract.identity import InvalidSessionKey, session_of
from warmroute_proxy.core.cache.return_times import OVER, PERSON
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.control.answers import error_answer
from warmroute_proxy.server.control.described import described
from warmroute_proxy.server.control.models import SESSION
from warmroute_proxy.server.dialects.routes import no_route
from warmroute_proxy.server.intake.caller import EXPECTED, identity_headers

EXPECT_PATH: Final = "/v1/sessions/expect"
_NEEDS: Final = (names.AFFINITY, names.EXPECT)
_BETWEEN_TURNS: Final = frozenset({PERSON, OVER})


class SessionWords:
    def __init__(self, router: Router, secrets: Secrets, clock: Callable[[], float]) -> None:
        self._router = router
        self._secrets = secrets
        self._clock = clock

    def observe(self, tenant: TenantConfig, headers: Mapping[str, str]) -> None:
        """Apply the hint in a request's headers. `headers` have lower-case names. Raises: Refusal."""
        returns = EXPECTED.get(headers.get(names.EXPECT, ""))
        if returns not in _BETWEEN_TURNS:
            text = f"{names.EXPECT} is `end` or `human` here: `tool` is said with a turn"
            raise Refusal(400, text, code="invalid_value", param=names.EXPECT)
        try:
            session = session_of(identity_headers(headers), {})
        except InvalidSessionKey as error:
            raise Refusal(400, str(error), code="invalid_session_key", param=error.source) from None
        if session is None:
            text = f"no session: name it by {names.AFFINITY}, as on its turns"
            raise Refusal(400, text, code="invalid_value", param=names.AFFINITY)
        _, key = self._secrets.session_of(tenant.share_group, session.key)
        self._router.observe_session(key, returns, self._clock())


def add_sessions(app: FastAPI, words: SessionWords) -> None:
    @app.post(EXPECT_PATH)
    @described(None, status=204, headers={**SESSION, names.EXPECT: {"enum": ["end", "human"]}}, needs=_NEEDS)
    async def expect(request: Request) -> Response:
        """How soon a session returns."""
        if request.state.forwarded is not None:
            return error_answer(404, no_route(request.url.path), "not_found")
        words.observe(request.state.tenant, dict(request.headers))
        return Response(status_code=204)
