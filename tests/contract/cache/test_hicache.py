"""The tiers of a hierarchical cache: which one a hit comes from, how it is counted, and the storage backend."""

from typing import Any

import pytest
from tests.contract.cache.lab import ADMIN, PAGE, PREFETCH_THRESHOLD, Answer, Lab, fresh_prompt

BACKEND = "/hicache/storage-backend"
STORAGE = {"storage_backend": "HiCacheFile"}
ATTACH = {
    "hicache_storage_backend": "file",
    "hicache_storage_backend_extra_config_json": f'{{"prefetch_threshold":{PREFETCH_THRESHOLD}}}',
}


@pytest.fixture(autouse=True)
def _empty(lab: Lab) -> None:
    lab.flush()


def tiers(device: int = 0, host: int = 0, storage: int = 0) -> dict[str, Any]:
    """Hits in pages, as an engine with a storage backend tells them."""
    return {"device": device * PAGE, "host": host * PAGE, "storage": storage * PAGE, **STORAGE}


def hit(answer: Answer) -> tuple[int, dict[str, Any] | None]:
    return answer.cached_tokens, answer.details


def test_a_miss_has_no_details_and_what_was_just_computed_is_on_the_device(lab: Lab) -> None:
    prompt = fresh_prompt(6 * PAGE)
    assert hit(lab.generate(prompt)) == (0, None)
    assert hit(lab.generate(prompt)) == (5 * PAGE, tiers(device=5)), "the last token is always computed"


def test_what_was_evicted_is_on_the_host_and_comes_back_to_the_device(lab: Lab) -> None:
    prompt = fresh_prompt(6 * PAGE + 1)
    lab.generate(prompt)
    lab.fill_device()
    before = lab.metric("load_back_tokens_total")
    assert hit(lab.generate(prompt)) == (6 * PAGE, tiers(host=6))
    assert lab.metric("load_back_tokens_total") == before + 6 * PAGE
    assert hit(lab.generate(prompt)) == (6 * PAGE, tiers(device=6))


def test_a_hit_may_come_from_two_tiers(lab: Lab) -> None:
    trunk = fresh_prompt(6 * PAGE + 1)
    lab.generate(trunk)
    lab.flush()
    lab.generate(trunk[: 2 * PAGE])
    assert hit(lab.generate(trunk)) == (6 * PAGE, tiers(device=2, storage=4))


def test_what_was_flushed_is_in_storage(lab: Lab) -> None:
    prompt = fresh_prompt(6 * PAGE + 1)
    lab.generate(prompt)
    lab.flush()
    counted = ("prefetched_tokens_total", "storage_prefetch_hit_tokens_total", "load_back_tokens_total")
    before = [lab.metric(name) for name in counted]
    assert hit(lab.generate(prompt)) == (6 * PAGE, tiers(storage=6))
    assert [lab.metric(name) - was for name, was in zip(counted, before, strict=True)] == [6 * PAGE] * 3
    assert hit(lab.generate(prompt)) == (6 * PAGE, tiers(device=6))


def test_a_short_hit_in_storage_is_not_fetched(lab: Lab) -> None:
    prompt = fresh_prompt(PREFETCH_THRESHOLD - PAGE + 1)
    lab.generate(prompt)
    lab.flush()
    assert hit(lab.generate(prompt)) == (0, None)


def test_an_answer_is_in_storage_too(lab: Lab) -> None:
    prompt = fresh_prompt(4 * PAGE)
    answer = lab.generate(prompt, 2 * PAGE)
    lab.flush()
    assert hit(lab.generate(prompt + answer.output_ids + [300])) == (5 * PAGE, tiers(storage=5))


def test_a_cache_salt_separates_storage(lab: Lab) -> None:
    prompt = fresh_prompt(6 * PAGE + 1)
    lab.generate(prompt, cache_salt="tenant-a")
    lab.flush()
    assert lab.generate(prompt).cached_tokens == 0
    assert lab.generate(prompt, cache_salt="tenant-b").cached_tokens == 0
    lab.flush()
    assert hit(lab.generate(prompt, cache_salt="tenant-a")) == (6 * PAGE, tiers(storage=6))


def test_chat_tells_tiers_when_asked(lab: Lab) -> None:
    text = " ".join(str(token) for token in fresh_prompt(100))
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 2}

    def ask(**more: Any) -> dict[str, Any]:
        response = lab.client.post("/v1/chat/completions", json={**body, **more})
        assert response.status_code == 200, response.text
        return response.json()  # type: ignore[no-any-return]

    assert "sglext" not in ask(return_cached_tokens_details=True), "nothing was cached"
    lab.flush()
    answer = ask(return_cached_tokens_details=True)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= PREFETCH_THRESHOLD
    assert answer["sglext"] == {"cached_tokens_details": {"device": 0, "host": 0, "storage": cached, **STORAGE}}
    assert "sglext" not in ask()


def test_cached_tokens_are_counted_by_tier(lab: Lab) -> None:
    def counts() -> list[float]:
        return [lab.metric("cached_tokens_total", cache_source=tier) for tier in ("device", "host", "storage")]

    prompt = fresh_prompt(6 * PAGE + 1)
    before = counts()
    lab.generate(prompt)
    lab.generate(prompt)
    lab.fill_device()
    lab.generate(prompt)
    lab.flush()
    lab.generate(prompt)
    assert [after - was for after, was in zip(counts(), before, strict=True)] == [6 * PAGE] * 3


def test_the_host_tier_has_its_size(lab: Lab) -> None:
    lab.generate(fresh_prompt(4 * PAGE), 2)
    assert lab.metric("hicache_host_used_tokens") == 4 * PAGE
    total = lab.metric("hicache_host_total_tokens")
    assert 3 * lab.info["max_total_num_tokens"] <= total <= 3 * lab.info["max_total_num_tokens"] + 2 * PAGE


def test_the_backend_is_for_admins(lab: Lab) -> None:
    for answer in (lab.client.get(BACKEND), lab.client.put(BACKEND, json=ATTACH), lab.client.delete(BACKEND)):
        assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})


def test_a_backend_is_detached_and_attached(lab: Lab) -> None:
    kept = fresh_prompt(6 * PAGE + 1)
    lab.generate(kept)
    lab.flush()
    detached = lab.client.delete(BACKEND, headers=ADMIN)
    assert (detached.status_code, detached.text.splitlines()[0]) == (200, "HiCache storage backend detached.")
    assert lab.client.delete(BACKEND, headers=ADMIN).status_code == 200
    assert lab.client.get(BACKEND, headers=ADMIN).json()["hicache_storage_backend"] is None
    assert lab.generate(kept).cached_tokens == 0
    assert lab.generate(kept).details == {"device": 6 * PAGE, "host": 0}

    attached = lab.client.put(BACKEND, headers=ADMIN, json=ATTACH)
    assert (attached.status_code, attached.text.splitlines()[0]) == (200, "HiCache storage backend attached.")
    assert lab.client.get(BACKEND, headers=ADMIN).json() == {
        "hicache_storage_backend": "file",
        "hicache_storage_backend_extra_config": ATTACH["hicache_storage_backend_extra_config_json"],
        "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_write_policy": "write_through",
    }
    lab.flush()
    assert hit(lab.generate(kept)) == (6 * PAGE, tiers(storage=6))


def test_what_is_attached_already_stays_attached(lab: Lab) -> None:
    again = lab.client.put(BACKEND, headers=ADMIN, json=ATTACH)
    assert again.status_code == 200
    assert "already enabled with same backend" in again.text
    other = lab.client.put(BACKEND, headers=ADMIN, json={"hicache_storage_backend": "nosuch"})
    assert other.status_code == 400
    assert "Detach first" in other.text
    assert lab.client.put(BACKEND, headers=ADMIN, json={}).status_code == 400


def test_a_backend_can_be_cleared(lab: Lab) -> None:
    prompt = fresh_prompt(6 * PAGE + 1)
    lab.generate(prompt)
    lab.flush()
    cleared = lab.client.post(f"{BACKEND}/clear", headers=ADMIN)
    assert (cleared.status_code, cleared.text.strip()) == (200, "Hierarchical cache storage backend cleared.")
    assert lab.generate(prompt).cached_tokens == 0


@pytest.mark.timeout(300, func_only=True)
def test_storage_and_nothing_else_outlives_a_restart(lab: Lab) -> None:
    prompt = fresh_prompt(6 * PAGE + 1)
    first = lab.generate(prompt, 4)
    lab.flush()
    lab.restart()
    answer = lab.generate(prompt, 4)
    assert hit(answer) == (6 * PAGE, tiers(storage=6))
    assert answer.output_ids == first.output_ids
    with lab.subscribe() as subscriber:
        messages = subscriber.replay(0)
    assert (messages[0].number, messages[0].events) == (0, [{"type": "AllBlocksCleared"}])
