"""Predicts which cache holds which prefix, in bounded memory.

A prompt is a chain of hashes: each covers the prompt from its start up to one position, a cut. An entry of the index
maps one such hash to a bitmask of slots, a plain int. A slot stands for one cache between two restarts: a worker's
device or host memory, or a store that workers share. When an engine restarts with an empty cache, that cache gets a
fresh slot, and the bits of the old slot become meaningless. A prompt is looked up from its start. The slots that still
match are the AND of the masks so far, and a slot's matched prefix ends at the cut where the slot drops out. Slots that
never matched cost nothing.

The lowest bits of an entry are not slots. They count, up to `MAX_SHARERS`, the conversations that began with this
prefix when it was already known. This count distinguishes a prefix that many conversations share from the history of
one conversation.

An entry without any slot is text that was computed once and is gone everywhere. Such entries distinguish an eviction
from new text.

Entries are evicted in bulk, without bookkeeping for each entry. They live in generations, which are plain dicts, newest
first. New entries go to the newest generation; inserting a chain again moves its entries there too (without the bits of
dead slots). When the newest generation is full, an empty one is put in front and the oldest is dropped whole, which
takes 0.5 ms. So an entry lives for at least `(generations - 1) * entries_per_generation` insertions after its last use:
this is LRU in coarse steps. If several generations hold an entry, only the newest copy counts, and the older copies are
dropped before it.

Limits:
- `generations * entries_per_generation` entries (8 x 65,536 by default, about 100 bytes each, 50 MB full; masks of more
  than 22 slots add 4 bytes for each 30 more);
- the first `MAX_CUTS` cuts of a chain: the rest of a longer prompt is not predicted;
- `MAX_SLOTS` slots: a retired slot is free again once the generation that was newest at its retirement is gone. If a
  slot is needed before any is free, the index restarts empty.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from typing import Final

from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.prompt.chain import Chain

MAX_CUTS: Final = 8192
MAX_SLOTS: Final = 1024
SHARER_BITS: Final = 8
MAX_SHARERS: Final = (1 << SHARER_BITS) - 1

_Lookup = Callable[[int], int | None]


class Match(Frozen, frozen=True):
    """How much of a chain each slot has, and how much of it is known at all, even if only in retired slots.

    `drops`: pairs of a mask of slots and the length in bytes of the prefix that these slots have, the shortest prefix
    first; slots without a prefix are left out. `shared`: the prefix with which several conversations have begun,
    divided at each change in the number of sharers: pairs of a part's end in bytes and its number of sharers.
    """

    drops: list[tuple[int, int]]
    known_bytes: int
    shared: list[tuple[int, int]]

    @property
    def bytes_by_slot(self) -> dict[int, int]:
        return {slot: end for mask, end in self.drops for slot in range(mask.bit_length()) if mask >> slot & 1}


class PrefixIndex:
    """A bounded map from prefixes to the caches that hold them."""

    def __init__(self, generations: int = 8, entries_per_generation: int = 65_536) -> None:
        self._generations: list[dict[int, int]] = [{} for _ in range(generations)]
        self._lookups: list[_Lookup] = []  # look-ups in the older generations that are not empty
        self._not_older: int | None = None  # a key that the last walk found in no older generation
        self._walked: Sequence[int] | None = None  # keys of the last walk, if the newest generation had all matches
        self._entries_per_generation = entries_per_generation
        self._rotations = 0
        self.removals = 0
        """How often entries were removed, or moved out of the newest generation. While this count stays the same, all
        added entries are still there.
        """
        self._slots: dict[str, int] = {}  # by cache name
        self._live_mask = 0
        self.restarted_mask = 0
        """The retired slots whose cache was lost because its engine restarted or left."""
        self._unused: list[int] = list(range(MAX_SLOTS + SHARER_BITS - 1, SHARER_BITS - 1, -1))
        self._retired: list[tuple[int, int]] = []  # (slot, rotations at its retirement), oldest first

    def slot_for(self, cache: str) -> int:
        """The slot of a cache, assigned at the first call. The caller chooses the name."""
        slot = self._slots.get(cache)
        if slot is None:
            slot = self._slots[cache] = self._free_slot()
            self._live_mask |= 1 << slot
            self.restarted_mask &= ~(1 << slot)
        return slot

    def retire(self, cache: str, *, restarted: bool = False) -> None:
        """Record that a cache is gone or empty: the next `slot_for` assigns a fresh slot. `restarted`: True if the
        engine restarted or left, False if it emptied its cache.
        """
        slot = self._slots.pop(cache, None)
        if slot is not None:
            self._live_mask &= ~(1 << slot)
            self._retired.append((slot, self._rotations))
            if restarted:
                self.restarted_mask |= 1 << slot

    def walk(self, chain: Chain, mask: int) -> Match:
        """Match a chain: the bytes that each slot in `mask` has, and the longest prefix known anywhere."""
        newest, keys, ends = self._generations[0], chain.hashes, chain.ends
        drops: list[tuple[int, int]] = []
        alive, end, known = mask, 0, len(keys)
        shared: list[tuple[int, int]] = []
        sharers = before = -1
        self._walked = keys
        rest = iter(keys)
        for slots in map(newest.get, rest):
            if slots == before:
                continue  # most cuts change nothing: they belong to the history of one conversation
            index = known - length_hint(rest) - 1
            if slots is None:
                slots = _older(self._lookups, keys[index])  # noqa: PLW2901 - found in an older generation
                if slots is None:
                    self._not_older = keys[index]
                    known = index
                    break
                self._walked = None
            before = slots
            end = ends[index - 1] if index else 0
            if alive and alive & slots != alive:
                if end:
                    drops.append((alive & ~slots, end))
                alive &= slots
            if sharers:
                count = slots & MAX_SHARERS
                if count != sharers:
                    if sharers > 0:
                        shared.append((end, sharers))
                    sharers = count
        end = ends[known - 1] if known else 0
        if alive and end:
            drops.append((alive, end))
        if sharers > 0:
            shared.append((end, sharers))
        return Match(drops, end, shared)

    def known_bytes(self, chain: Chain) -> int:
        """The bytes of the longest known prefix, including prefixes of workers that have restarted since."""
        return self.walk(chain, 0).known_bytes

    def lost_to_restarts(self, chain: Chain, match: Match) -> int:
        """How many bytes of the chain were lost with restarted engines; 0 if some cache has all that is known of the
        chain.

        `match`: the result of the walk of this chain.
        """
        if not self.restarted_mask or match.known_bytes <= (match.drops[-1][1] if match.drops else 0):
            return 0
        drops = self.walk(chain, self.restarted_mask).drops
        return drops[-1][1] if drops else 0

    def insert(self, keys: Sequence[int], slots: int, *, begins: bool = False, cached: int = 0) -> None:
        """Record that the caches in `slots` have, or will have soon, the cuts in `keys`. Keys beyond `MAX_CUTS` are
        left out.

        `begins`: a new conversation begins with these cuts, and counts as one more sharer of the cuts already known.
        `cached`: how many of the first cuts were in these caches at the last walk. The first `cached` cuts are skipped
        if that walk had this very list of keys, and no entry was removed or moved since.
        """
        limit = self._entries_per_generation
        newest = self._generations[0]
        live_bits = self._live_mask | MAX_SHARERS
        unknown = False  # once a cut of a chain is unknown, all later cuts are too
        if len(keys) > MAX_CUTS:
            keys = keys[:MAX_CUTS]
        elif cached and keys is self._walked and not begins and newest.get(keys[cached - 1], 0) & slots == slots:
            keys = keys[cached:]
        for at, key in enumerate(keys):
            known = newest.get(key)
            if known is None:
                if len(newest) >= limit:
                    newest = self._rotate()
                older = None if unknown or key == self._not_older else _older(self._lookups, key)
                if older is None:
                    if not unknown and _added(newest, keys[at:], slots, limit):
                        return
                    unknown = True
                    newest[key] = slots
                    continue
                known = older & live_bits
                newest[key] = known | slots
            elif known & slots != slots:
                newest[key] = known | slots
            if begins and known & MAX_SHARERS != MAX_SHARERS:
                newest[key] = (known | slots) + 1

    def remove(self, keys: Iterable[int], slots: int) -> None:
        """Record that the caches in `slots` have lost the cuts in `keys`. The text stays known."""
        self.removals += 1
        self._walked = None
        other_slots = ~slots
        for key in keys:
            for generation in self._generations:  # only the newest copy counts
                known = generation.get(key)
                if known is not None:
                    generation[key] = known & other_slots
                    break

    def forget(self, keys: Iterable[int], slots: int) -> None:
        """Record that the caches in `slots` did not compute the cuts in `keys` after all.

        Entries that are left without any slot are deleted, so a prompt that was never computed is not known.
        """
        self.removals += 1
        self._walked = None
        other_slots = ~slots
        for key in keys:
            for generation in self._generations:
                known = generation.get(key)
                if known is None:
                    continue
                if known & other_slots & ~MAX_SHARERS:
                    generation[key] = known & other_slots
                else:
                    del generation[key]

    @property
    def entries(self) -> int:
        return sum(map(len, self._generations))

    @property
    def rotations(self) -> int:
        return self._rotations

    def _rotate(self) -> dict[int, int]:
        self._generations.insert(0, {})
        self._generations.pop()
        self._lookups = [generation.get for generation in self._generations[1:] if generation]
        self._not_older = None
        self._rotations += 1
        self.removals += 1
        self._walked = None
        while self._retired and self._rotations - self._retired[0][1] >= len(self._generations):
            self._unused.append(self._retired.pop(0)[0])
        return self._generations[0]

    def _free_slot(self) -> int:
        if not self._unused:
            if not self._retired:
                raise OverflowError(f"more than {MAX_SLOTS} caches")
            self._generations = [{} for _ in self._generations]
            self._lookups = []
            self.removals += 1
            self._walked = None
            self._unused = [slot for slot, _ in self._retired]
            self._retired.clear()
        return self._unused.pop()


def _older(lookups: list[_Lookup], key: int) -> int | None:
    """The newest entry for a key that is not in the newest generation."""
    for lookup in lookups:
        slots = lookup(key)
        if slots is not None:
            return slots
    return None


def _added(newest: dict[int, int], keys: Sequence[int], slots: int, limit: int) -> bool:
    """Add all keys at once, which is faster. Returns False if one is known, two are equal, or they do not fit."""
    if len(newest) + len(keys) > limit:
        return False
    added = dict.fromkeys(keys, slots)
    if len(added) < len(keys) or not newest.keys().isdisjoint(added):
        return False
    newest.update(added)
    return True
