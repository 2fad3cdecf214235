"""`POST /pd_role_switch`: what SGLang answers (`sglang/srt/disaggregation/role_switch.py`, `_reject_reason` and
`handle_pd_role_switch`). Graphs are not modelled, so their memory is asked for by nobody here."""

from typing import Any, cast

from warmroute_backend.engine.http import fields
from warmroute_backend.engine.http.fields import Body
from warmroute_backend.engine.model.work import Role
from warmroute_backend.engine.serving.engine import EmbeddedEngine

_ROLES = ("prefill", "decode")


def role_switch(engine: EmbeddedEngine, body: Body) -> tuple[int, dict[str, Any]]:
    """Status and answer."""
    old, new = engine.settings.role, (fields.string(body, "new_role") or "").lower()
    reason = _reason(engine, new)
    message = reason or ("already in target role" if new == old else "ok")
    if reason is None and new != old:
        engine.switch_role(cast("Role", new))
    answer = {"success": reason is None, "message": message, "old_role": old, "new_role": new}
    return 400 if reason else 200, {**answer, "safe_to_restore": reason is not None}


def _reason(engine: EmbeddedEngine, new: str) -> str | None:
    if not engine.settings.role_switch:
        return "--enable-pd-role-switch is not set on this server"
    if new not in _ROLES:
        return f"invalid new_role={new!r}"
    if not engine.idle():
        return "instance is not idle; drain all requests before switching"
    return None
