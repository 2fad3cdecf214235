"""HiCache on real SGLang: what was cached on the device, on the host and in files arrives in receipts as such."""

import pytest

from tests.integration.sglang.behind import PAGE_TOKENS, Behind, conversation, files, flush, push_out
from tests.subjects.processes import until
from warmroute.contract import receipt as contract_receipt
from warmroute_backend.sglang import Server

pytestmark = pytest.mark.timeout(400)  # of a restart


def tiers(behind: Behind, name: str) -> dict[str, int]:
    """The cached tokens of one turn by tier, from its receipt."""
    with behind.proxy.client() as client:
        usage = client.post("/v1/chat/completions", json=conversation(name, max_tokens=2)).json()["usage"]
    assert contract_receipt.check(usage) == []
    assert usage["warmroute"]["estimated"] == []
    found: dict[str, int] = usage["warmroute"]["cached"]
    return found


def test_each_tier_arrives_in_the_receipt(aggregated: Behind, sglang_aggregated: Server, name: str) -> None:
    before = len(files(sglang_aggregated))
    assert tiers(aggregated, name) == {"device": 0, "host": 0, "storage": 0}
    first = tiers(aggregated, name)
    assert first["device"] > 256
    assert first["host"] == first["storage"] == 0
    pages = first["device"] // PAGE_TOKENS
    until(lambda: len(files(sglang_aggregated)) >= before + pages, "the pages are in files")

    push_out(sglang_aggregated)
    host = tiers(aggregated, name)
    assert (host["host"], host["storage"]) == (first["device"] - host["device"], 0)
    assert host["host"] > 0

    flush(sglang_aggregated)
    storage = tiers(aggregated, name)
    assert storage == {"device": 0, "host": 0, "storage": first["device"]}

    sglang_aggregated.restart()
    until(aggregated.proxy.is_ready, "the proxy has seen it again")
    restarted = tiers(aggregated, name)
    assert restarted == {"device": 0, "host": 0, "storage": first["device"]}
    assert tiers(aggregated, name)["device"] == first["device"]
