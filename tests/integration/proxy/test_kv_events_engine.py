"""KV events of the embedded engine, followed by the proxy: evictions are known before the next turn is placed."""

import json
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tests.integration.proxy.kv_scene import ask, follow, metric, predicted_tiers, removed_blocks
from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until

pytestmark = pytest.mark.full

PAGE = 16
KV_TOKENS = 4096
PUBLISHER = json.dumps({"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0", "bind": True})
REPLAYED = PUBLISHER[:-1] + ', "replay_endpoint": "tcp://127.0.0.1:0"}'
REPLAYING = ("--page-size", str(PAGE), "--kv-tokens", str(KV_TOKENS), "--kv-events-config", REPLAYED)
LONG = "so many words about nothing " * 250  # about 1,750 tokens: two such prompts fit, three do not
ERROR_TOKENS = 2048 // 4 + PAGE
"""A cut is 2,048 bytes: of one that is partly evicted, nothing is predicted."""


@pytest.fixture
def options() -> tuple[str, ...]:
    """More of the engine's."""
    return ()


@pytest.fixture
def proxy(options: tuple[str, ...], tmp_path: Path) -> Iterator[ProxyProcess]:
    """It follows the events of its engine."""
    given = ("--page-size", str(PAGE), "--kv-tokens", str(KV_TOKENS), "--kv-events-config", PUBLISHER, *options)
    with (
        EngineProcess(tmp_path, "e", "aggregated", *given) as engine,
        ProxyProcess(tmp_path, [engine.toml("east")]) as made,
    ):
        follow(made)
        yield made


@pytest.mark.parametrize(
    "options", [(), ("--enable-hierarchical-cache", "--hicache-ratio", "4")], ids=["device", "host"]
)
def test_what_was_evicted_is_not_predicted(proxy: ProxyProcess, options: tuple[str, ...]) -> None:
    first = ask(proxy, chat(f"first {LONG}", max_tokens=4), "a")
    assert first["prompt_tokens"] > 1024
    again = ask(proxy, chat(f"first {LONG}", max_tokens=4), "a")
    assert predicted_tiers(proxy)["device"] >= first["prompt_tokens"] - ERROR_TOKENS
    assert again["prompt_tokens_details"]["cached_tokens"] >= first["prompt_tokens"] - PAGE

    for name in ("second", "third"):
        ask(proxy, chat(f"{name} {LONG}", max_tokens=4), name)
    until(lambda: removed_blocks(proxy) > 0, "the first prompt makes room")

    after = ask(proxy, chat(f"first {LONG}", max_tokens=4), "a")
    predicted, cached = predicted_tiers(proxy), after["warmroute"]["cached"]
    for tier in ("device", "host"):
        assert abs(predicted[tier] - cached[tier]) <= ERROR_TOKENS
    assert cached["device"] < first["prompt_tokens"] / 2
    assert (cached["host"] > 1024) == bool(options)
    assert metric(proxy, "warmroute_kv_event_gaps_total") == 0
    assert metric(proxy, "warmroute_prediction_error_ratio_count") >= 5


def test_the_eviction_of_a_prompt_whose_client_left_is_known(proxy: ProxyProcess) -> None:
    body = chat(f"first {LONG}", max_tokens=2000, stream=True, n=2)
    with proxy.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(line for line in answer.iter_lines() if '"content":"' in line and '"content":""' not in line)
        # several answers are not waited for after the client left: the turn ends without any usage
    for name in ("second", "third"):
        ask(proxy, chat(f"{name} {LONG}", max_tokens=4), name)
    until(lambda: removed_blocks(proxy) > 0, "the first prompt makes room")
    after = ask(proxy, chat(f"first {LONG}", max_tokens=4), "a")
    assert abs(predicted_tiers(proxy)["device"] - after["warmroute"]["cached"]["device"]) <= ERROR_TOKENS


def published(engine: EngineProcess) -> int:
    """How many batches of KV events the engine has published, by its replay socket."""
    with urllib.request.urlopen(f"{engine.url}/server_info", timeout=seconds(5)) as response:
        port = json.load(response)["kv_events"]["replay_endpoint_port_base"]
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        count = 0
        while len(frames := dealer.recv_multipart()) > 3 and frames[3]:
            count = int.from_bytes(frames[2], "big") + 1
    return count


def test_a_proxy_that_starts_beside_a_warm_engine_knows_what_is_evicted(tmp_path: Path) -> None:
    """It has seen no event of the blocks that hold the system prompt, behind which all that it sends is cached."""
    with EngineProcess(tmp_path, "e", "aggregated", *REPLAYING) as engine:
        with ProxyProcess(tmp_path, [engine.toml("east")]) as earlier:
            ask(earlier, chat("hello", max_tokens=4), "earlier")
        with ProxyProcess(tmp_path, [engine.toml("east")]) as proxy:
            follow(proxy)

            def unheard() -> float:
                heard = metric(proxy, "warmroute_kv_event_batches_total")
                return published(engine) - heard

            missed = min(unheard() for _ in range(5))  # some may be on its way
            for name in ("first", "second", "third") * 2:
                ask(proxy, chat(f"{name} {LONG}", max_tokens=4), name)
            until(lambda: engine.running() == 0 and unheard() <= missed, "the proxy has heard of all that is cached")
            again = ask(proxy, chat(f"first {LONG}", max_tokens=4), "first")
    assert 0 < again["prompt_tokens_details"]["cached_tokens"] < 1024
    assert again["warmroute"]["predicted_cached"] <= 1024


def test_each_of_several_processes_joins_the_events_of_all_prompts(tmp_path: Path) -> None:
    missed: list[float] = []

    def all_follow() -> bool:
        """Nothing more is missed: what came before each process had subscribed is all."""
        ask(proxy, chat(uuid.uuid4().hex, max_tokens=4), "x")
        looks = [unheard()]
        while len(looks) < 5 or len(set(looks[-5:])) > 1:  # some is on its way
            looks.append(unheard())
        missed.append(looks[-1])
        return missed[-2:-1] == missed[-1:]

    def unheard() -> float:
        heard = metric(proxy, "warmroute_kv_event_batches_total")
        return 3 * published(engine) - heard  # asked last: what is published meanwhile is not heard of yet

    with (
        EngineProcess(tmp_path, "e", "aggregated", *REPLAYING) as engine,
        ProxyProcess(tmp_path, [engine.toml("east")], extra="processes = 3") as proxy,
    ):
        until(all_follow, "all processes follow KV events")
        seen: list[tuple[int, int]] = []
        for turn in range(12):  # two prompts fit: each time the one that comes was evicted by the two before it
            name = ("first", "second", "third")[turn % 3]
            usage = ask(proxy, chat(f"{name} {LONG}", max_tokens=4), name)
            seen.append((usage["warmroute"]["predicted_cached"], usage["prompt_tokens_details"]["cached_tokens"]))
            until(
                lambda: engine.running() == 0 and unheard() <= min(missed),
                "each process has heard of all that is cached",
            )
        assert max(cached for _, cached in seen[3:]) < 1024, "evictions have happened"
        far = [(predicted, cached) for predicted, cached in seen[3:] if abs(predicted - cached) > ERROR_TOKENS]
        lost = {name: metric(proxy, f"warmroute_kv_{name}_total") for name in ("event_gaps", "index_drops")}
        assert far == [], f"whoever decides knows of what the engine has evicted, unless events were lost: {lost}"
