"""KV events: which pages entered or left a rank's cache, in the form of SGLang 0.5.23.

A page is named by a chained SHA-256 over its tokens as little-endian uint32,

    digest_i = SHA256(digest_{i-1} || tokens of page i),

where the digest before the first page is empty, or SHA256("sglang-cache-salt-v1\\0" || salt) if the request has a
`cache_salt`. The published hash is the digest's first 8 bytes, big endian, as a signed int64. The request's
`extra_key` separates cached prompts but is not in the hash, so requests with different extra keys publish equal hashes
for equal tokens (definitions: `sglang/srt/mem_cache/utils.py`, `cpp_utils/hash_binding.cpp`). A token of this engine is
4 bytes of text, and its id is those bytes as a little-endian uint32. So the hash runs over the text bytes of a page.

With EAGLE (speculative decoding) the unit of a page is a pair of neighbouring tokens: a page of n units covers n + 1
tokens, `token_ids` are pairs, and the hash runs over the pairs.

The recorder gets the changes from a rank's scheduler and keeps them for the publisher. It has one entry for every
resident page (bounded by the tiers' capacities). Consecutive pages of a prompt become one event, as long as they
differ only in hashes and tokens. Pages that a request computed carry its `session_id`; copies between tiers do not.
"""

import hashlib
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import msgspec

from warmroute_lab.engine.model.prompt import TOKEN_BYTES
from warmroute_lab.engine.model.tiers import Tier
from warmroute_lab.engine.model.work import Work

Medium = Literal["GPU", "CPU_PINNED"]
MEDIA: Final[dict[str, Medium]] = {"device": "GPU", "host": "CPU_PINNED"}
_SALT_TAG = b"sglang-cache-salt-v1\0"


class _Event(msgspec.Struct, omit_defaults=True, tag=True):
    """Encoded as a map with the class name under `type`, without the fields that have their default."""


class BlockStored(_Event):
    """Consecutive pages of one prompt entered a tier. `token_ids`: the tokens, or pairs of tokens, of these pages."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int] | list[tuple[int, int]]
    block_size: int
    lora_id: int | None
    medium: Medium
    cache_salt: str | None = None
    session_id: str | None = None


class BlockRemoved(_Event):
    """Pages left a tier."""

    block_hashes: list[int]
    medium: Medium


class AllBlocksCleared(_Event):
    """Device and host are empty; a storage backend is not touched."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True):
    """The content of one message, encoded as an array."""

    ts: float
    events: list[Event]
    attn_dp_rank: int


def chain_seed(cache_salt: str | None) -> bytes:
    """The digest before the first page of a prompt."""
    return b"" if cache_salt is None else hashlib.sha256(_SALT_TAG + cache_salt.encode()).digest()


def chain(previous: bytes, page: bytes) -> bytes:
    """The digest of a page. `previous`: the digest of the page before it, or the seed; `page`: its units as bytes."""
    return hashlib.sha256(previous + page).digest()


def published(digest: bytes) -> int:
    """The int64 under which a page is published."""
    value: int = struct.unpack(">q", digest[:8])[0]
    return value


def pairs(tokens: bytes) -> bytes:
    """The bigram units of a run of tokens: each token with the one after it."""
    ids = _ids(tokens)
    return array("I", [token for pair in pairwise(ids) for token in pair]).tobytes()


def _ids(tokens: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(tokens) // TOKEN_BYTES}I", tokens))


@dataclass(frozen=True, slots=True)
class Path:
    """The text on a request's pages, the request's salt and its session. `answer` returns the text after the prompt."""

    prompt: bytes
    answer: Callable[[], bytes] = bytes
    cache_salt: str | None = None
    session_id: str | None = None

    def cut(self, begin: int, end: int) -> bytes:
        """Bytes `begin` to `end` of prompt and answer together."""
        return self.prompt[begin:end] if end <= len(self.prompt) else (self.prompt + self.answer())[begin:end]


@dataclass(slots=True)
class _Page:
    digest: bytes
    parent: int | None
    units: bytes
    cache_salt: str | None
    tiers: set[str]


class Recorder:
    """The events of one rank since the last `take`."""

    def __init__(self, page_size: int, path_of: Callable[[Work], Path], *, bigram: bool = False) -> None:
        self.page_size = page_size
        self.bigram = bigram
        self._path_of = path_of
        self._pages: dict[int, _Page] = {}
        self._events: list[Event] = []
        self._copies: list[Event] = []

    def take(self) -> list[Event]:
        """The events to publish now. A copy to the host tier comes one call later than the page that it copies, since
        SGLang looks for finished copies one scheduler round later."""
        events, self._events, self._copies = self._events, self._copies, []
        return events

    def stored(self, work: Work, start: int, stop: int, tier: Tier, *, computed: bool) -> None:
        if tier == "storage":
            return
        path = self._path_of(work)
        copied_out = tier == "host" and computed
        session_id = path.session_id if tier == "device" and computed else None
        for index in range(start, stop):
            key = work.keys[index]
            page = self._pages.get(key)
            if page is None:
                page = self._pages[key] = self._page(work.keys, index, path)
            page.tiers.add(tier)
            self._add(self._event(page, MEDIA[tier], session_id), self._copies if copied_out else self._events)

    def removed(self, keys: Sequence[int], tier: Tier) -> None:
        hashes = []
        for key in keys:
            page = self._pages[key]
            hashes.append(published(page.digest))
            page.tiers.discard(tier)
            if not page.tiers:
                del self._pages[key]
        if hashes:
            self._add(BlockRemoved(hashes, MEDIA[tier]), self._events)

    def cleared(self) -> None:
        self._pages.clear()
        self._events += self._copies
        self._copies = []
        self._events.append(AllBlocksCleared())

    def _page(self, keys: Sequence[int], index: int, path: Path) -> _Page:
        page_bytes = self.page_size * TOKEN_BYTES
        begin = index * page_bytes
        if self.bigram:
            units = pairs(path.cut(begin, begin + page_bytes + TOKEN_BYTES))
        else:
            units = path.cut(begin, begin + page_bytes)
        parent = self._pages[keys[index - 1]] if index else None
        digest = chain(chain_seed(path.cache_salt) if parent is None else parent.digest, units)
        above = None if parent is None else published(parent.digest)
        return _Page(digest, above, units, path.cache_salt, set())

    def _event(self, page: _Page, medium: Medium, session_id: str | None) -> BlockStored:
        ids = _ids(page.units)
        return BlockStored(
            block_hashes=[published(page.digest)],
            parent_block_hash=page.parent,
            token_ids=list(zip(ids[::2], ids[1::2], strict=True)) if self.bigram else ids,
            block_size=self.page_size,
            lora_id=None,
            medium=medium,
            cache_salt=page.cache_salt,
            session_id=session_id,
        )

    @staticmethod
    def _add(event: Event, to: list[Event]) -> None:
        """Append, or extend the last event if this one continues it."""
        last_event = to[-1] if to else None
        if (
            isinstance(event, BlockRemoved)
            and isinstance(last_event, BlockRemoved)
            and last_event.medium == event.medium
        ):
            last_event.block_hashes += event.block_hashes
        elif isinstance(event, BlockStored) and isinstance(last_event, BlockStored) and _continues(event, last_event):
            last_event.block_hashes += event.block_hashes
            last_event.token_ids += event.token_ids  # type: ignore[operator]
        else:
            to.append(event)


def _continues(event: BlockStored, last_event: BlockStored) -> bool:
    return (
        event.parent_block_hash == last_event.block_hashes[-1]
        and event.medium == last_event.medium
        and event.cache_salt == last_event.cache_salt
        and event.session_id == last_event.session_id
    )
