"""Agents of one session: each has a lineage of its own, whatever its client sends as the session."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

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
    """OpenCode V2's sub-agents: the affinity is the parent's."""
    return {
        "x-session-affinity": "ses_root",
        "x-session-id": "ses_root",
        "x-opencode-session-id": own,
        "x-parent-session-id": "ses_root",
    }


def claude(own: str) -> dict[str, str]:
    return {"x-claude-code-session-id": "a119", "x-claude-code-agent-id": own}


def codex(own: str) -> dict[str, str]:
    return {"session-id": "01a1", "thread-id": own, "x-codex-parent-thread-id": "01a1"}


@pytest.mark.parametrize("head", [opencode, claude, codex])
def test_parallel_sub_agents_of_one_parent_keep_their_lineages(proxy: ProxyProcess, head: Any) -> None:
    names = [f"{head.__name__}-{at}" for at in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        agents = list(pool.map(lambda name: receipts_of(proxy, head(name), name), names))
    assert len({receipt["session"] for agent in agents for receipt in agent}) == 1
    assert [[receipt["turn"] for receipt in agent] for agent in agents] == [[1, 2, 3, 4]] * 2
    assert {name for agent in agents for receipt in agent[1:] for name in receipt["loss"]} <= {"new", "page_rounding"}
    ids = {receipt["id"]: at for at, agent in enumerate(agents) for receipt in agent}
    until(lambda: ids.keys() <= {row["id"] for row in proxy.rows()}, "their rows")
    lineages = {(ids[row["id"]], row["lineage"]) for row in proxy.rows() if row["id"] in ids}
    assert len({lineage for _, lineage in lineages}) == len(lineages) == 2
    assert {(at, receipt["kind"]) for at, agent in enumerate(agents) for receipt in agent} == {(0, "sub"), (1, "sub")}
