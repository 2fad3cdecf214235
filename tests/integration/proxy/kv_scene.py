"""One story about KV events, for any engine: a prompt is cached, pushed out by others, and asked for again."""

import re
import uuid
from typing import Any

from tests.subjects.processes import ProxyProcess, until


def ask(proxy: ProxyProcess, body: dict[str, Any], session: str) -> dict[str, Any]:
    """The settled usage of one turn."""
    with proxy.client() as client:
        answer = client.post("/v1/chat/completions", json=body, headers={"x-session-id": session})
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def predicted_tiers(proxy: ProxyProcess) -> dict[str, int]:
    """What the newest decision expected to be cached in which tier."""
    with proxy.admin() as admin:
        newest = admin.get("/admin/decisions", params={"limit": 1}).json()["decisions"][0]
    return dict(zip(("device", "host", "storage"), newest["predicted"], strict=True))


def metric(proxy: ProxyProcess, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    text = proxy.metrics()
    found = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(value) for said, value in found if all(one in said for one in wanted))


def follow(proxy: ProxyProcess, model: str = "kimi-k2.5") -> None:
    """Send short turns until what they store is heard of: the subscription stands."""

    def heard() -> bool:
        ask(proxy, {"model": model, "messages": [{"role": "user", "content": uuid.uuid4().hex}], "max_tokens": 40}, "x")
        return metric(proxy, "warmroute_kv_event_batches_total") > 0

    until(heard, "the proxy follows KV events")


def removed_blocks(proxy: ProxyProcess) -> float:
    """Blocks of prompts of this proxy that left a tier."""
    return metric(proxy, "warmroute_kv_blocks_total", event="removed", joined="yes")
