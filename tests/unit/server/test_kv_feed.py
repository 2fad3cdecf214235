"""Batches of KV events, in order and out of it: what the router is told."""

from typing import Any

import msgspec
import pytest

from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.engines.kv_feed import MAX_WAITING, KvFeed, PromptTokens

CHAIN = Chain([11, 12, 13, 14], [64, 128, 192, 256])  # a cut ends with each block of 16 tokens
ROUTING = RoutingRequest("m", 1, 1, False, None, CHAIN, 0, 1, 300, None, None, False)
BLOCKS = [-900, 901, 2**63 - 1, -(2**63)]


def stored(blocks: list[int], parent: int | None = None, tag: str | None = "t", **more: Any) -> dict[str, Any]:
    event = {
        "type": "BlockStored",
        "block_hashes": blocks,
        "parent_block_hash": parent,
        "token_ids": list(range(16 * len(blocks))),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
    }
    return {**event, **({"session_id": tag} if tag else {}), **more}


def removed(blocks: list[int], medium: str = "GPU") -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": blocks, "medium": medium}


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: dict[str, Any], ts: float = 100.0) -> bytes:
    return msgspec.msgpack.encode([ts, list(events), 0])


class Fed:
    """A router that was told of one prompt, and the feed of its worker."""

    def __init__(self, *, can_replay: bool = True, host_cache: bool = False) -> None:
        worker = Worker("w", "w", 0, "aggregated", host_cache=host_cache)
        self.router = Router("east", [worker])
        self.metrics = Metrics()
        self.feed = KvFeed(worker, self.router, self.metrics, block_size=16, can_replay=can_replay)
        self.feed.blocks.expect("t", CHAIN)
        self.feed.blocks.settled("t", 64)

    def live(self, number: int, *events: dict[str, Any]) -> int | None:
        return self.feed.live(number, batch(*events), 100.5)

    def cached(self) -> tuple[int, ...]:
        """Blocks that are predicted to be cached, by tier."""
        match = self.router.place(ROUTING, 0.0)
        return tuple(-(-tokens // 16) for tokens in match.predicted)

    def count(self, name: str) -> int:
        return self.metrics.value(declared.BY_NAME[f"warmroute_kv_{name}_total"], (("worker", "w"),))


def test_what_is_stored_and_removed_is_predicted_so() -> None:
    fed = Fed()
    assert fed.live(0, stored(BLOCKS)) is None
    assert fed.cached() == (4, 0, 0)
    fed.live(1, removed(BLOCKS[2:]))
    assert fed.cached() == (2, 0, 0)
    fed.live(2, removed(BLOCKS[1:2]), stored(BLOCKS[1:3], BLOCKS[0]))
    assert fed.cached() == (3, 0, 0)
    assert fed.feed.lag_s == 0.5
    assert fed.count("event_batches") == 3


def test_a_block_on_the_host_is_a_host_hit_until_it_is_gone_there_too() -> None:
    fed = Fed(host_cache=True)
    fed.live(0, stored(BLOCKS), stored(BLOCKS, tag=None, medium="CPU_PINNED"))
    assert fed.cached() == (4, 0, 0)
    fed.live(1, removed(BLOCKS[1:]))
    assert fed.cached() == (1, 3, 0)
    fed.live(2, stored(BLOCKS[1:2], BLOCKS[0], tag=None))  # loaded back
    assert fed.cached() == (2, 2, 0)
    fed.live(3, removed(BLOCKS[3:], "CPU_PINNED"))
    assert fed.cached() == (2, 1, 0)


def test_a_cleared_cache_is_empty() -> None:
    fed = Fed()
    fed.live(0, stored(BLOCKS))
    fed.live(1, CLEARED)
    assert fed.cached() == (0, 0, 0)
    fed.live(2, stored(BLOCKS[:1]))
    assert fed.cached() == (1, 0, 0)


def test_a_gap_is_filled_by_a_replay_and_what_came_meanwhile_follows() -> None:
    fed = Fed()
    fed.live(0, stored(BLOCKS))
    assert fed.live(2, stored(BLOCKS[3:], BLOCKS[2])) == 1
    assert fed.live(3, removed(BLOCKS[3:])) is None
    fed.feed.replayed(1, batch(removed(BLOCKS[2:])), 101.0)
    fed.feed.replayed(2, batch(stored(BLOCKS[2:], BLOCKS[1])), 101.0)  # as published, not as it came
    fed.feed.replay_ended(101.0)
    assert fed.cached() == (3, 0, 0)
    assert fed.live(4, removed(BLOCKS[2:3])) is None
    assert fed.cached() == (2, 0, 0)
    assert (fed.count("event_gaps"), fed.count("event_batches_replayed"), fed.count("index_drops")) == (1, 2, 0)


def test_a_replay_that_was_faster_than_the_publisher_is_no_restart() -> None:
    fed = Fed()
    fed.live(0, stored(BLOCKS))
    assert fed.live(2, removed(BLOCKS[3:])) == 1
    for number, event in ((1, removed([5])), (2, removed(BLOCKS[3:])), (3, removed(BLOCKS[2:3])), (4, removed([6]))):
        fed.feed.replayed(number, batch(event), 101.0)
    fed.feed.replay_ended(101.0)
    fed.live(3, removed(BLOCKS[2:3]))  # the replay gave them before they came by themselves
    fed.live(4, removed([6]))
    assert fed.cached() == (2, 0, 0)
    assert fed.live(5, removed(BLOCKS[1:2])) is None
    assert fed.cached() == (1, 0, 0)
    assert (fed.count("event_restarts"), fed.count("index_drops"), fed.count("event_batches")) == (0, 0, 6)


def test_an_engine_that_begins_anew_during_a_replay_is_noticed() -> None:
    fed = Fed()
    fed.live(0, stored(BLOCKS))
    assert fed.live(2, stored(BLOCKS)) == 1
    fed.live(0, stored(BLOCKS[:2]))
    fed.feed.replay_ended(101.0)
    assert fed.cached() == (2, 0, 0)
    assert fed.count("event_restarts") == 1
    assert fed.live(1, removed(BLOCKS[1:2])) is None
    assert fed.cached() == (1, 0, 0)


@pytest.mark.parametrize("replayed", [[], [1], [2], [5, 6]])
def test_a_gap_that_stays_drops_the_index(replayed: list[int]) -> None:
    fed = Fed()
    fed.live(0, stored(BLOCKS))
    assert fed.live(3, stored(BLOCKS[:2])) == 1
    for number in replayed:
        fed.feed.replayed(number, batch(removed([5])), 101.0)
    fed.feed.replay_ended(101.0)
    assert fed.count("index_drops") == 1
    assert fed.cached() == (2, 0, 0)  # what the batch after the gap says is believed
    assert fed.live(4, removed(BLOCKS[1:2])) is None
    assert fed.cached() == (1, 0, 0)


def test_without_a_replay_a_gap_drops_the_index_at_once() -> None:
    fed = Fed(can_replay=False)
    fed.live(0, stored(BLOCKS))
    assert fed.live(2, removed([5])) is None
    assert fed.cached() == (0, 0, 0)
    assert (fed.count("event_gaps"), fed.count("index_drops")) == (1, 1)


def test_numbers_that_go_back_are_a_restart() -> None:
    fed = Fed()
    fed.live(7, stored(BLOCKS))
    fed.live(8, removed([5]))
    fed.live(0, CLEARED)
    assert fed.cached() == (0, 0, 0)
    assert fed.live(1, stored(BLOCKS[:2])) is None
    assert fed.cached() == (2, 0, 0)
    assert (fed.count("event_restarts"), fed.count("index_drops"), fed.count("event_gaps")) == (1, 0, 0)


def test_a_restart_that_the_probe_has_seen_is_not_noticed_again() -> None:
    """The first batch of the new process is lost, since ZeroMQ had not connected yet."""
    fed = Fed()
    fed.live(5_000, stored(BLOCKS))
    fed.feed.engine_restarted()
    fed.router.worker_restarted("w")
    fed.feed.blocks.expect("t", CHAIN)
    fed.feed.blocks.settled("t", 64)
    fed.router.cache_stored("w", CHAIN.hashes[:2], "device")
    fed.live(1, stored(BLOCKS[:3]))
    assert fed.cached() == (3, 0, 0)
    assert fed.count("event_restarts") == 0


def test_the_first_batch_may_have_any_number() -> None:
    fed = Fed()
    assert fed.live(4711, stored(BLOCKS)) is None
    assert fed.cached() == (4, 0, 0)


def test_a_replay_that_takes_too_long_is_given_up() -> None:
    fed = Fed()
    fed.live(0, stored(BLOCKS))
    fed.live(2, removed([5]))
    for number in range(3, MAX_WAITING + 3):
        fed.live(number, removed([5]))
    assert not fed.feed.replaying
    assert fed.count("index_drops") == 1
    assert fed.live(MAX_WAITING + 3, stored(BLOCKS)) is None
    assert fed.cached() == (4, 0, 0)


def test_pairs_of_tokens_are_recognised() -> None:
    fed = Fed()
    fed.feed.blocks.expect("t", Chain([11], [68]))
    fed.feed.blocks.settled("t", 17)  # 17 tokens, 16 pairs
    pairs = [[n, n + 1] for n in range(16)]
    fed.live(0, stored(BLOCKS[:1], token_ids=pairs))
    fed.live(1, removed(BLOCKS[:1]))
    assert fed.metrics.value(declared.KV_BLOCKS_TOTAL, (("worker", "w"), ("event", "removed"), ("joined", "yes"))) == 1
    long = Fed()
    long.feed.blocks.expect("t", Chain([11], [4 * 321]))
    long.feed.blocks.settled("t", 321)  # 20 blocks of 16 pairs; a long array has another header
    long.live(0, stored(list(range(20)), token_ids=[[n, n + 1] for n in range(320)]))
    assert long.feed.blocks.removed([19], "device").keys == [11]


def test_kinds_media_and_fields_to_come_are_passed_over() -> None:
    fed = Fed()
    fed.live(
        0,
        {"type": "BlockMoved", "block_hashes": BLOCKS},
        stored(BLOCKS, medium="TAPE"),
        stored(BLOCKS, medium=None, surprise={"a": 1}),
    )
    assert fed.cached() == (4, 0, 0)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\x01", msgspec.msgpack.encode({"ts": 1}), b"\x91" * 3000])
def test_an_unreadable_batch_drops_the_index_and_no_more(payload: bytes) -> None:
    fed = Fed()
    fed.live(0, stored(BLOCKS))
    assert fed.feed.live(1, payload, 101.0) is None
    assert fed.cached() == (0, 0, 0)
    assert fed.live(2, stored(BLOCKS)) is None
    assert fed.cached() == (4, 0, 0)
    assert fed.count("index_drops") == 1


def test_an_eviction_before_the_end_of_the_turn_is_known_at_its_end() -> None:
    fed = Fed()
    fed.feed.blocks.expect("u", CHAIN)
    fed.live(0, stored(BLOCKS, tag="u"))
    fed.router.cache_stored("w", CHAIN.hashes, "device")  # as the router does at the first token
    fed.live(1, removed(BLOCKS[2:]))
    assert fed.cached() == (4, 0, 0)
    fed.feed.settled(PromptTokens("w", "u", 64, None, 0))
    assert fed.cached() == (2, 0, 0)
