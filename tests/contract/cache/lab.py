"""An engine with small tiers, for tests that fill, flush and restart it: what it is asked, and what it says of it.

Prompts are token ids, so that a page is the same page in every engine. Device 4,096 tokens, host 3 times as much,
pages of 16, and a storage directory that outlives the engine.
"""

import hashlib
import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from tests.contract.subject import Kind
from tests.machine import seconds
from tests.subjects.connections import NOT_KEPT
from tests.subjects.kv_subscriber import KvSubscriber

PAGE = 16
WAIT_S = 20.0
DEVICE_TOKENS = 4096
HOST_RATIO = 3
BUFFER_STEPS = 50
PREFETCH_THRESHOLD = 64
ADMIN_KEY = "sesame"
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
CLEARED = {"type": "AllBlocksCleared"}
FLAGS = (
    *("--page-size", str(PAGE), "--context-length", "4096", "--max-running-requests", "8"),
    *("--admin-api-key", ADMIN_KEY, "--enable-hierarchical-cache", "--hicache-ratio", str(HOST_RATIO)),
    *("--hicache-write-policy", "write_through", "--hicache-storage-backend", "file"),
    *("--hicache-storage-prefetch-policy", "wait_complete"),
    *("--hicache-storage-backend-extra-config", f'{{"prefetch_threshold":{PREFETCH_THRESHOLD}}}'),
)
"""What both subjects are started with; how they name their KV capacity differs."""


def kv_events_config(endpoint: str, replay_endpoint: str) -> str:
    """The value of `--kv-events-config`."""
    config = {"publisher": "zmq", "topic": "kv-events", "buffer_steps": BUFFER_STEPS, "bind": True}
    return json.dumps({**config, "endpoint": endpoint, "replay_endpoint": replay_endpoint})


@dataclass(frozen=True)
class Answer:
    """What `/generate` said of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    details: dict[str, Any] | None
    output_ids: list[int]

    @property
    def stored_pages(self) -> int:
        """The complete pages of prompt and answer; the last token of an answer is sampled, never computed."""
        return (self.prompt_tokens + self.completion_tokens - 1) // PAGE


class Lab:
    """One running engine, in turn after turn of its life."""

    def __init__(self, kind: Kind, start: Callable[[], str], kill: Callable[[], None]) -> None:
        """`start` starts an engine and returns its address; `kill` ends it at once."""
        self.kind = kind
        self._start = start
        self.kill = kill
        self.begin()

    def begin(self) -> None:
        """Start the engine, on the storage that an earlier one left."""
        self.client = httpx.Client(base_url=self._start(), timeout=seconds(60), limits=NOT_KEPT)
        self.info: dict[str, Any] = self.client.get("/server_info").json()

    def restart(self) -> None:
        """End it as a crash would, and start it again."""
        self.end()
        self.begin()

    def end(self) -> None:
        self.client.close()
        self.kill()

    def generate(self, prompt: Sequence[int], max_tokens: int = 1, **fields: Any) -> Answer:
        """One request, to its end."""
        sampling = {"max_new_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        response = self.client.post("/generate", json={"input_ids": prompt, "sampling_params": sampling, **fields})
        assert response.status_code == 200, response.text
        body = response.json()
        meta = body["meta_info"]
        return Answer(
            meta["prompt_tokens"],
            meta["completion_tokens"],
            meta["cached_tokens"],
            meta["cached_tokens_details"],
            body["output_ids"],
        )

    def fill_device(self) -> None:
        """Push everything else out of the device tier, with prompts that were never seen before."""
        for _ in range(4):
            self.generate(fresh_prompt(DEVICE_TOKENS // 4 + PAGE))

    def subscribe(self) -> KvSubscriber:
        return KvSubscriber(self.info["kv_events"])

    def flush(self) -> None:
        """Empty device and host, once what is being written to storage has been."""
        response = self.client.post("/flush_cache", params={"timeout": WAIT_S}, headers=ADMIN)
        assert response.status_code == 200, response.text

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith(f"sglang:{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rpartition(" ")[2])
        return total


def fresh_prompt(tokens: int) -> list[int]:
    """A prompt that no other request has."""
    return [random.randrange(300, 2000) for _ in range(tokens)]


def page_hashes(tokens: Sequence[int], cache_salt: str | None = None, page: int = PAGE) -> list[int]:
    """The hashes of the complete pages of a path, from SGLang's definition. `page`: how many tokens a page has."""
    digest = b"" if cache_salt is None else hashlib.sha256(b"sglang-cache-salt-v1\0" + cache_salt.encode()).digest()
    hashes = []
    for start in range(0, len(tokens) - page + 1, page):
        digest = hashlib.sha256(digest + struct.pack(f"<{page}I", *tokens[start : start + page])).digest()
        hashes.append(struct.unpack(">q", digest[:8])[0])
    return hashes
