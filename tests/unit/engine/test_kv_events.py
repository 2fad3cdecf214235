"""KV events: hashes against the published definitions, and what the recorder makes of what a cache tells."""

import struct
from dataclasses import replace
from typing import Any

import pytest

from warmroute_lab.engine.events.kv_events import (
    BlockRemoved,
    BlockStored,
    Path,
    Recorder,
    chain,
    chain_seed,
    pairs,
    published,
)
from warmroute_lab.engine.events.kv_publisher import read_config
from warmroute_lab.engine.model.tiers import Tier
from warmroute_lab.engine.model.work import Work


def tokens(*ids: int) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def hashes(seed: bytes, *pages: bytes) -> list[int]:
    out = []
    for page in pages:
        seed = chain(seed, page)
        out.append(published(seed))
    return out


def test_page_hashes_are_the_engines() -> None:
    """Vectors computed from SGLang's definition for page size 2 and tokens 1, 2, 3, 4."""
    pages = (tokens(1, 2), tokens(3, 4))
    assert hashes(chain_seed(None), *pages) == [3817746824117602890, -4216701448867210342]
    assert hashes(chain_seed("tenantA"), *pages) == [-8562889918952783816, -2089052502147518184]


def test_bigram_pages_hash_pairs_of_tokens() -> None:
    pages = (pairs(tokens(1, 2, 3)), pairs(tokens(3, 4, 5)))
    assert pages[0] == tokens(1, 2, 2, 3)
    assert hashes(chain_seed(None), *pages) == [-1303529142941650691, 7461429976246528554]


class Cache:
    """A recorder with a path of numbered pages: page i has the tokens 2i+1, 2i+2. The prompt ends within page 4."""

    def __init__(self, *, bigram: bool = False) -> None:
        text = tokens(*range(1, 20))
        self.path = Path(text[:36], lambda: text[36:])
        self.work = Work(9, 8, [100 + i for i in range(8)])
        self.recorder = Recorder(2, lambda _: self.path, bigram=bigram)

    def stored(self, start: int, stop: int, tier: Tier = "device", *, computed: bool = True, **whose: Any) -> None:
        self.path = replace(self.path, **{"session_id": None, "cache_salt": None, **whose})
        self.recorder.stored(self.work, start, stop, tier, computed=computed)


def test_pages_of_two_sessions_are_two_events() -> None:
    cache = Cache()
    cache.stored(0, 1, session_id="a")
    cache.stored(1, 2, session_id="b")
    assert [event.session_id for event in cache.recorder.take() if isinstance(event, BlockStored)] == ["a", "b"]


def test_removals_of_a_tier_are_one_event_and_hashes_stay_with_the_page() -> None:
    cache = Cache()
    cache.stored(0, 2)
    cache.stored(0, 2, "host")
    (stored,) = cache.recorder.take()
    cache.recorder.take()
    assert isinstance(stored, BlockStored)
    cache.recorder.removed([101], "device")
    cache.recorder.removed([100], "device")
    cache.recorder.removed([101], "host")
    first, second = stored.block_hashes
    assert cache.recorder.take() == [BlockRemoved([second, first], "GPU"), BlockRemoved([second], "CPU_PINNED")]
    cache.stored(0, 1, computed=False, session_id="s")
    assert cache.recorder.take() == [BlockStored([first], None, [1, 2], 2, None, "GPU")]


def test_the_storage_tier_has_no_events() -> None:
    cache = Cache()
    cache.stored(0, 2, "storage")
    assert cache.recorder.take() == []


def test_a_bigram_event_has_pairs() -> None:
    cache = Cache(bigram=True)
    cache.stored(0, 2)
    (event,) = cache.recorder.take()
    assert isinstance(event, BlockStored)
    assert event.token_ids == [(1, 2), (2, 3), (3, 4), (4, 5)]
    assert event.block_hashes == hashes(b"", pairs(tokens(1, 2, 3)), pairs(tokens(3, 4, 5)))
    assert event.block_size == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not usable"),
        ('{"publisher":"kafka"}', "publisher"),
        ('{"publisher":"zmq","endpoint":"ipc:///tmp/x"}', "tcp://host:port"),
        ('{"publisher":"zmq","endpoint":"tcp://*:99999"}', "65535"),
        ('{"publisher":"zmq","replay_endpont":"tcp://*:1"}', "replay_endpont"),
        ('{"publisher":"zmq","buffer_steps":0}', "buffer_steps"),
        ('{"publisher":"zmq","hwm":0}', "hwm"),
        ('{"publisher":"zmq","hwm":99999999999}', "hwm"),
        ('{"publisher":"zmq","format":"dynamo"}', "format"),
    ],
)
def test_a_bad_configuration_is_said_to_be_bad(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_config(text)


def test_no_publisher_unless_asked_for() -> None:
    assert read_config("{}") is None
    config = read_config('{"publisher":"zmq","endpoint":"tcp://[::]:0","replay_endpoint":"tcp://127.0.0.1:0"}')
    assert config is not None
    assert config.buffer_steps == 10_000
