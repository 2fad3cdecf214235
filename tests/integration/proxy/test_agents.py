"""Agents of one session: each has a lineage of its own, whatever its client sends as the session."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.subjects.processes import ProxyProcess, until

TURNS = 4


def receipts_of(proxy: ProxyProcess, headers: dict[str, str], task: str) -> list[dict[str, Any]]:
    """The receipts of an agent's turns; all agents have the same tools and system prompt."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a sub-agent. " * 100}]
    found = []
    with proxy.client() as client:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"{task} {turn} " * 60})
            body = {"model": "kimi-k2.5", "max_tokens": 8, "messages": messages}
            answer = client.post("/v1/chat/completions", json=body, headers=headers).json()
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            found.append(answer["usage"]["warmroute"])
    return found


def opencode(own: str) -> dict[str, str]:
    """OpenCode V2: the affinity is the parent's. Headers of others: `tests/unit/contract/test_clients.py`."""
    root = dict.fromkeys(("x-session-affinity", "x-session-id", "x-parent-session-id"), "ses_root")
    return {**root, "x-opencode-session-id": own}


def test_parallel_sub_agents_of_one_parent_keep_their_lineages(proxy: ProxyProcess) -> None:
    names = ["opencode-1", "opencode-2"]
    with ThreadPoolExecutor(2) as pool:
        agents = list(pool.map(lambda name: receipts_of(proxy, opencode(name), name), names))
    assert len({receipt["session"] for agent in agents for receipt in agent}) == 1
    assert [[receipt["turn"] for receipt in agent] for agent in agents] == [[1, 2, 3, 4]] * 2
    assert {name for agent in agents for receipt in agent[1:] for name in receipt["loss"]} <= {"new", "page_rounding"}
    ids = {receipt["id"]: at for at, agent in enumerate(agents) for receipt in agent}
    until(lambda: ids.keys() <= {row["id"] for row in proxy.rows()}, "their rows")
    lineages = {(ids[row["id"]], row["lineage"]) for row in proxy.rows() if row["id"] in ids}
    assert len({lineage for _, lineage in lineages}) == len(lineages) == 2
    assert {(at, receipt["kind"]) for at, agent in enumerate(agents) for receipt in agent} == {(0, "sub"), (1, "sub")}
