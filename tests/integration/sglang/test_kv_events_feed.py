"""KV events and loads of real SGLang, followed by the proxy: what left the device is known before the next turn."""

from tests.integration.proxy.kv_scene import ask, follow, metric, predicted_tiers, removed_blocks
from tests.integration.sglang.behind import PAGE_TOKENS, Behind, conversation, flush, push_out
from tests.subjects.processes import until
from warmroute_backend.sglang import Server

ERROR = 0.02
"""Of a prompt: tokens are estimated from bytes, and of a page that is not full nothing is kept."""


def tiers_of_next(behind: Behind, name: str) -> tuple[dict[str, int], dict[str, int], int]:
    """One more turn of a conversation: the tiers as predicted and as reported, and the size of its prompt."""
    usage = ask(behind.proxy, conversation(name, turns=2, max_tokens=2), name)
    return predicted_tiers(behind.proxy), usage["warmroute"]["cached"], usage["prompt_tokens"]


def assert_close(predicted: dict[str, int], reported: dict[str, int], prompt: int) -> None:
    for tier, tokens in reported.items():
        assert abs(predicted[tier] - tokens) <= ERROR * prompt + 2 * PAGE_TOKENS, (predicted, reported)


def test_the_tier_of_a_prompt_is_known_before_it_is_asked_for(
    aggregated: Behind, sglang_aggregated: Server, name: str
) -> None:
    follow(aggregated.proxy)
    ask(aggregated.proxy, conversation(name, turns=2, max_tokens=2), name)
    predicted, reported, prompt = tiers_of_next(aggregated, name)
    assert reported["device"] > 256
    assert_close(predicted, reported, prompt)

    push_out(sglang_aggregated)
    pages = prompt // PAGE_TOKENS
    until(lambda: removed_blocks(aggregated.proxy) >= pages, "the prompt left the device")
    predicted, reported, _ = tiers_of_next(aggregated, name)
    assert reported["host"] > 256
    assert_close(predicted, reported, prompt)

    predicted, reported, _ = tiers_of_next(aggregated, name)  # it was loaded back
    assert reported["host"] == 0
    assert_close(predicted, reported, prompt)

    batches = metric(aggregated.proxy, "warmroute_kv_event_batches_total")
    flush(sglang_aggregated)
    until(lambda: metric(aggregated.proxy, "warmroute_kv_event_batches_total") > batches, "the flush is heard of")
    predicted, reported, _ = tiers_of_next(aggregated, name)
    assert predicted["device"] == predicted["host"] == 0
    assert reported["storage"] > 256
    assert_close(predicted, reported, prompt)
    assert metric(aggregated.proxy, "warmroute_kv_event_gaps_total") == 0


def test_a_prefill_server_is_followed_too(pair: Behind, name: str) -> None:
    follow(pair.proxy)
    ask(pair.proxy, conversation(name, turns=2, max_tokens=2), name)
    predicted, reported, prompt = tiers_of_next(pair, name)
    assert reported["device"] > 256
    assert_close(predicted, reported, prompt)
    push_out_of_prefill(pair, name)
    predicted, reported, _ = tiers_of_next(pair, name)
    assert reported["device"] < prompt / 2
    assert_close(predicted, reported, prompt)


def push_out_of_prefill(pair: Behind, name: str) -> None:
    """Other conversations through both servers, until the one named has left the prefill server."""
    before = removed_blocks(pair.proxy)
    pages = len(str(conversation(name, turns=2))) // PAGE_TOKENS // 4
    number = 0

    def gone() -> bool:
        nonlocal number
        number += 1
        ask(pair.proxy, conversation(f"{name} {number}" * 40, max_tokens=1), f"other {number}")
        return removed_blocks(pair.proxy) >= before + pages

    until(gone, "the prompt left the prefill server", 60.0)
