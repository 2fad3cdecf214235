"""Switches an engine between prefill and decode while it runs: SGLang's `POST /pd_role_switch`. Admin listener only.

    GET  /admin/engines/{id}/flip    whether the engine can be flipped; 409 with the reason if not
    POST /admin/engines/{id}/flip    flip the engine, which must be drained. `graph_gb`: memory for the CUDA graphs that
                                     SGLang captures on the first flip to decode

SGLang 0.5.23 flips an idle engine that was started with `--enable-pd-role-switch`, but never an engine that uses
speculative decoding (`sglang/srt/arg_groups/pd_disaggregation_hook.py:165`). A flip empties the engine's caches,
including its blocks in a store (`sglang/srt/disaggregation/role_switch.py`, `_release_prefix_cache_for_role_switch`).
The proxy uses the role that the engine reports, so a flip outlives a restart of the proxy.
"""

from typing import Final, Literal

import msgspec
from fastapi import FastAPI, Response

from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.control.answers import error_answer, json_answer
from warmroute_proxy.server.control.described import CHANGING, READING, admin_route
from warmroute_proxy.server.control.engine_admin import EngineAdmin
from warmroute_proxy.server.control.models import EngineState
from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.probing import fetch_server_info
from warmroute_proxy.server.engines.small_get import SMALL_BYTES, ask

FLIP_TIMEOUT_S: Final = 300.0
"""The limit is long, since SGLang creates its transfer engines anew and captures CUDA graphs."""

_OTHER: Final[dict[str, Literal["prefill", "decode"]]] = {"prefill": "decode", "decode": "prefill"}


class _Answer(msgspec.Struct):
    """SGLang's answer (`PdRoleSwitchReqOutput`)."""

    success: bool = False
    message: str = ""
    safe_to_restore: bool = False


class EngineFlips:
    """Flips engines of this region, each engine at most once at a time."""

    def __init__(self, engines: Engines, router: Router, admin: EngineAdmin) -> None:
        self._engines = engines
        self._router = router
        self._admin = admin
        self._flipping: set[str] = set()

    def refusal(self, engine_id: str, *, now: bool) -> str | None:
        """Why an engine cannot be flipped; None if it can. `now`: the engine must also be drained."""
        engine = self._engines.by_id[engine_id]
        role, info = engine.role, engine.info
        if role not in _OTHER:
            return f"engine {engine_id} is {role}: there are two roles to switch between only with PD disaggregation"
        if info.speculates:
            return f"engine {engine_id} runs speculative decoding, with which SGLang switches no role"
        if not info.can_flip:
            return f"engine {engine_id} was started without --enable-pd-role-switch"
        if not self._others(engine):
            return f"engine {engine_id} is the only {role} engine that serves: without it nothing does {role}"
        if engine_id in self._flipping:
            return f"engine {engine_id} is being flipped"
        if now and not self._admin.status(engine_id).drained:
            return f"engine {engine_id} is not drained: `warmroute engines flip {engine_id}` drains it first"
        return None

    async def flip(self, engine_id: str, graph_gb: float | None) -> str | None:
        """Flip a drained engine. Returns None, or the reason why the flip failed."""
        engine = self._engines.by_id[engine_id]
        body: dict[str, object] = {"new_role": _OTHER[engine.role]}
        if graph_gb is not None:
            body["decode_cuda_graph_memory_gb"] = graph_gb
        self._flipping.add(engine_id)
        try:
            status, answer = await ask(
                engine.upstream,
                "/pd_role_switch",
                f"content-type: application/json\r\n{engine.admin_bearer}",
                FLIP_TIMEOUT_S,
                method="POST",
                body=msgspec.json.encode(body),
                limit_bytes=SMALL_BYTES,
            )
            if status != 200:
                return _reason(status, answer)
            await fetch_server_info(self._engines, engine, self._router)
            return None
        finally:
            self._flipping.discard(engine_id)

    def _others(self, engine: Engine) -> list[Engine]:
        drains = self._engines.drains
        return [
            other
            for id_, other in self._engines.by_id.items()
            if other is not engine and other.role == engine.role and other.up and not drains.draining(id_)
        ]


def _reason(status: int, answer: bytes) -> str:
    try:
        found = msgspec.json.decode(answer, type=_Answer)
    except msgspec.MsgspecError:
        return f"it answered {status or 'nothing'}"
    after = "it keeps its role" if found.safe_to_restore else "it has to be restarted"
    return f"{found.message or f'it answered {status}'}; {after}"


def add_flip_routes(app: FastAPI, admin: EngineAdmin, flips: EngineFlips) -> None:
    def refused(engine_id: str, *, now: bool) -> Response | None:
        if (unknown := admin.unknown(engine_id)) is not None:
            return unknown
        reason = flips.refusal(engine_id, now=now)
        return None if reason is None else error_answer(409, reason, "flip_refused")

    @app.get("/admin/engines/{engine_id:path}/flip")
    @admin_route(EngineState, errors=(*READING, 409))
    async def may_flip(engine_id: str) -> Response:
        """Whether it can be flipped."""
        return refused(engine_id, now=False) or json_answer(admin.status(engine_id))

    @app.post("/admin/engines/{engine_id:path}/flip")
    @admin_route(EngineState, errors=(*CHANGING, 502))
    async def flip(engine_id: str, graph_gb: float | None = None) -> Response:
        """Switch a drained engine between prefill and decode."""
        answer = refused(engine_id, now=True)
        if answer is not None:
            return answer
        reason = await flips.flip(engine_id, graph_gb)
        if reason is not None:
            return error_answer(502, f"engine {engine_id} was not flipped: {reason}", "flip_failed")
        return json_answer(admin.status(engine_id))
