"""`warmroute launch --engine sglang-cpu` of a plan with the Mooncake store: real SGLang and real Mooncake, over TCP.

The store is what the plan's files say, less RDMA: a master, a segment of each engine, a disk.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.subjects.launched import Launched, pair_plan
from tests.subjects.ports import free_ports
from tests.subjects.processes import until
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.sglang.command import PAGE_TOKENS, STORE_BUCKET_KEYS
from warmroute_backend.sglang.server import START_TIMEOUT_S

pytestmark = pytest.mark.timeout(900)
KEYS_OF_A_PAGE = 2
"""Keys and values, each a block of the store."""

SYSTEM = "You are a careful assistant, and you say what you have not checked. " * 40


def stored_plan(*, disk_gb: int) -> Plan:
    plan = pair_plan(storage="mooncake")
    store, metrics = free_ports(2)
    return replace(plan, site=replace(plan.site, store_port=store, store_metrics_port=metrics, store_disk_gb=disk_gb))


def ask(launched: Launched, messages: list[dict[str, str]]) -> tuple[dict[str, int], int]:
    """The cached tokens of a turn by tier, and the tokens of its prompt."""
    usage = launched.usage(messages, ignore_eos=True)
    return usage["warmroute"]["cached"], usage["prompt_tokens"]


def test_kv_is_found_in_the_store_and_on_its_disk_after_a_restart_of_all(tmp_path: Path) -> None:
    with Launched(tmp_path, stored_plan(disk_gb=8), engine="sglang-cpu") as launched:
        launched.start().wait_up(START_TIMEOUT_S * 2)
        assert set(launched.status()) == {"mooncake-master", "prefill-0", "decode-0", "proxy"}
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Begin."}]
        cached, prompt_tokens = ask(launched, messages)
        assert sum(cached.values()) == 0
        pages = prompt_tokens // PAGE_TOKENS

        launched.flush()
        again = [*messages, {"role": "assistant", "content": "noted"}, {"role": "user", "content": "Go on."}]
        assert ask(launched, again)[0] == {"device": 0, "host": 0, "storage": pages * PAGE_TOKENS}

        wanted = pages * KEYS_OF_A_PAGE // STORE_BUCKET_KEYS
        disk = launched.state_dir / "hicache"
        until(lambda: len(list(disk.rglob("*.bucket"))) >= wanted, "the store has written its disk", 60)
        assert launched.act("stop").returncode == 0
        assert launched.launcher is not None
        launched.launcher.wait()
        launched.start().wait_up(START_TIMEOUT_S * 2)
        left = (wanted - 1) * STORE_BUCKET_KEYS // KEYS_OF_A_PAGE * PAGE_TOKENS

        def found() -> bool:
            """An engine tells the master of its disk some seconds after its start."""
            launched.flush()
            return ask(launched, again)[0]["storage"] >= left

        until(found, f"{left} tokens are found on the disk", 60)
