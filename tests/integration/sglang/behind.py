"""A proxy with real servers behind it, and what those servers say of themselves."""

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, until
from tests.subjects.stopped import Stopped
from warmroute_backend.asking import ask
from warmroute_backend.sglang import Server
from warmroute_lab.demo.played import metric_sum

PAGE_TOKENS = 16
SYSTEM = "You are a careful assistant, and you say what you have not checked. " * 40
LONG_PROMPT = " a long prompt" * 2_000
"""About 12,000 tokens: a second or more of computing."""

POOL_TOKENS = 32_768
FILLER_TOKENS = 2_000
QUEUES = (
    "prefill_bootstrap_queue_reqs",
    "prefill_inflight_queue_reqs",
    "decode_prealloc_queue_reqs",
    "decode_transfer_queue_reqs",
)


class Behind(Stopped):
    """A proxy of one region and the servers it places turns on, which stay. `options`: of the proxy."""

    def __init__(self, folder: Path, *servers: Server, **options: str) -> None:
        self.servers = servers
        self.proxy = ProxyProcess(folder / "proxy", [toml(server) for server in servers], **options)  # type: ignore[arg-type]

    def begin(self) -> None:
        self.proxy.begin()

    def stop(self) -> None:
        self.proxy.stop()

    @property
    def computes(self) -> Server:
        """The server that computes prompts and keeps their KV."""
        return self.servers[0]

    @property
    def answers(self) -> Server:
        """The server that the client's tokens come from."""
        return self.servers[-1]

    def idle(self) -> bool:
        """Whether no server works for anybody, or holds anything for it."""
        return all(work_of(server) == 0 for server in self.servers if server.running())

    def counted(self) -> tuple[int, int]:
        """Prompt tokens and cached tokens that SGLang has counted since it started."""
        text = get_text(f"{self.computes.url}/metrics")
        return (
            int(metric_sum(text, "sglang:prompt_tokens_total")),
            int(metric_sum(text, "sglang:cached_tokens_total")),
        )


def conversation(name: str, *, turns: int = 1, **fields: Any) -> dict[str, Any]:
    """A chat body of so many turns that begins with `name`: what nobody else has sent is in no cache."""
    messages = [{"role": "system", "content": f"{name}. {SYSTEM}"}, {"role": "user", "content": "Begin."}]
    for turn in range(1, turns):
        messages += [{"role": "assistant", "content": f"answer {turn}"}, {"role": "user", "content": f"Go on, {turn}."}]
    return {"model": "kimi-k2.5", "messages": messages, **fields}


def toml(server: Server) -> str:
    """The proxy's table of a server."""
    role = "aggregated" if server.role == "speculative" else server.role
    lines = ["[[engine]]", f'id = "{server.role}"', f'url = "{server.url}"', f'role = "{role}"']
    lines.append('region = "east"')
    if server.role == "prefill":
        lines += [f'bootstrap_host = "{server.bootstrap_host}"', f"bootstrap_port = {server.bootstrap_port}"]
    return "\n".join(lines)


def work_of(server: Server) -> int:
    """Requests that a server runs, or has in any queue."""
    load = ask(f"{server.url}/v1/loads", seconds(5)).fields()["loads"][0]
    queued = sum(int(load["disaggregation"][name]) for name in QUEUES)
    return int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) + queued


def get_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=seconds(20)) as response:
        text: str = response.read().decode()
    return text


def post(server: Server, path: str, body: dict[str, Any] | None = None) -> None:
    """Ask a server directly, past the proxy."""
    request = urllib.request.Request(
        server.url + path, json.dumps(body or {}).encode(), {"content-type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=seconds(60)).close()


def push_out(server: Server) -> None:
    """Fill the device pool with other prompts, so that what was there has to go to the host."""
    for number in range(POOL_TOKENS // FILLER_TOKENS + 1):
        ids = [3 + (number * 31 + position * 7) % 2000 for position in range(FILLER_TOKENS)]
        post(server, "/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}})


def flush(server: Server) -> None:
    """Empty device and host; files stay. SGLang refuses while it works."""
    until(lambda: work_of(server) == 0, "the server is idle")
    post(server, "/flush_cache")


def files(server: Server) -> Sequence[Path]:
    """The pages of its storage tier."""
    return [path for path in server.storage_dir.rglob("*") if path.is_file()]
