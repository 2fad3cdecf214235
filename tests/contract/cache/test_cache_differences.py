"""Where the tiers of the embedded engine are simpler than SGLang's."""

import pytest
from tests.contract.cache.lab import ADMIN, DEVICE_TOKENS, PAGE, Lab, fresh_prompt


def real(lab: Lab) -> bool:
    return lab.kind == "sglang"


def test_how_much_an_eviction_takes(lab: Lab) -> None:
    lab.flush()
    prompt = fresh_prompt(40 * PAGE + 1)
    lab.generate(prompt)
    for _ in range(2):
        lab.generate(fresh_prompt(DEVICE_TOKENS // 2 - 10 * PAGE))
    details = lab.generate(prompt).details
    assert details is not None
    assert details["device"] + details["host"] == 40 * PAGE
    assert (details["device"] == 0) == real(lab)


@pytest.mark.parametrize(
    "policy", [{"hicache_storage_prefetch_policy": "timeout"}, {"hicache_write_policy": "write_through_selective"}]
)
def test_cache_policies(lab: Lab, policy: dict[str, str]) -> None:
    lab.flush()
    path = "/hicache/storage-backend"
    before = lab.client.get(path, headers=ADMIN).json()
    answer = lab.client.put(path, headers=ADMIN, json={"hicache_storage_backend": "file", **policy})
    assert answer.status_code == (200 if real(lab) else 400)
    usual = {name: before[name] for name in ("hicache_storage_prefetch_policy", "hicache_write_policy")}
    lab.client.put(path, headers=ADMIN, json={"hicache_storage_backend": "file", **usual})
