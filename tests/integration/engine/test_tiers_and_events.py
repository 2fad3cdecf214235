"""KV events of several ranks, and the tiers of a prefill engine as decode reports them."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.subjects.kv_subscriber import KvSubscriber

pytestmark = pytest.mark.full

PAGE = 64
EVENTS = json.dumps(
    {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0", "bind": True}
)
HICACHE = ("--enable-hierarchical-cache", "--hicache-storage-backend", "file")


def extra_config(folder: Path) -> str:
    return json.dumps({"file_storage_path": str(folder), "prefetch_threshold": PAGE})


def generate(engine: Any, text: str, **fields: Any) -> dict[str, Any]:
    body = {"text": text, "sampling_params": {"max_new_tokens": 2}, **fields}
    answer = engine.client.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["meta_info"]  # type: ignore[no-any-return]


def test_each_rank_has_ports_and_numbers_of_its_own(start_engine: Callable[..., Any]) -> None:
    engine = start_engine("--kv-events-config", EVENTS, "--dp-size", "3", "--speed", "100")
    info = engine.client.get("/server_info").json()["kv_events"]
    assert info["dp_size"] == 3
    for rank in (2, 0):
        with KvSubscriber(info, rank=rank) as subscriber:
            assert [message.payload[2] for message in subscriber.replay(0)] == [rank], "only that it is empty"
            generate(engine, f"for rank {rank} " * PAGE, routed_dp_rank=rank)
            subscriber.until({"type": "BlockStored", "medium": "GPU"})
            assert [message.number for message in subscriber.replay(0)] == [0, 1]


def test_an_engine_goes_on_without_a_storage_directory_that_is_lost(
    start_engine: Callable[..., Any], tmp_path: Path
) -> None:
    """As when a disk is full or a mount is gone."""
    folder = tmp_path / "storage"
    engine = start_engine(*HICACHE, "--hicache-storage-backend-extra-config", extra_config(folder), "--speed", "100")
    generate(engine, "kept " * 100)
    folder.rename(tmp_path / "gone")
    folder.touch()
    for turn in range(2):
        assert generate(engine, "lost " * 400)["cached_tokens"] == (0, 448)[turn], "the device caches as ever"
    assert engine.client.post("/hicache/storage-backend/clear").status_code == 200
    assert generate(engine, "found " * 400)["prompt_tokens"] == 600
    assert engine.stop().count("cannot be used") == 1


def test_storage_is_shared_by_engines_of_one_directory(start_engine: Callable[..., Any], tmp_path: Path) -> None:
    flags = (*HICACHE, "--hicache-storage-backend-extra-config", extra_config(tmp_path), "--speed", "100")
    text = "shared by two " * 100
    first, second = start_engine(*flags), start_engine(*flags)
    assert generate(first, text)["cached_tokens"] == 0
    details = generate(second, text)["cached_tokens_details"]
    assert details == {"device": 0, "host": 0, "storage": 5 * PAGE, "storage_backend": "HiCacheFile"}
    other_page = start_engine(*flags, "--page-size", "32")
    assert generate(other_page, text)["cached_tokens"] == 0


def test_a_hit_in_a_lower_tier_costs_time(start_engine: Callable[..., Any], tmp_path: Path) -> None:
    """In virtual time: computing takes longest, fetching from storage less, and what is on the device nothing."""
    flags = (*HICACHE, "--hicache-storage-backend-extra-config", extra_config(tmp_path), "--speed", "100")
    engine = start_engine(*flags)
    text = "x" * 100_000
    for _ in range(2):
        generate(engine, text)
    assert engine.client.post("/flush_cache").status_code == 200
    generate(engine, text)
    computed, device, storage = (entry["ttft_virtual_ms"] for entry in engine.finished()["finished"])
    assert device < storage < computed


def test_decode_reports_the_tiers_of_prefill(start_engine: Callable[..., Any], tmp_path: Path) -> None:
    flags = (*HICACHE, "--hicache-storage-backend-extra-config", extra_config(tmp_path))
    prefill = start_engine("--role", "prefill", "--speed", "50", *flags)
    decode = start_engine("--role", "decode", "--speed", "50")
    place = {"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.bootstrap_port}

    def ask(room: int) -> list[Any]:
        with ThreadPoolExecutor() as pool:
            legs = [pool.submit(generate, e, "y" * 3000, **place, bootstrap_room=room) for e in (prefill, decode)]
            return [leg.result()["cached_tokens_details"] for leg in legs]

    assert ask(1) == [None, None]
    assert prefill.client.post("/flush_cache").status_code == 200
    hit = {"device": 0, "host": 0, "storage": 11 * PAGE}
    assert ask(2) == [{**hit, "storage_backend": "HiCacheFile"}, hit], "decode has no backend to name"
