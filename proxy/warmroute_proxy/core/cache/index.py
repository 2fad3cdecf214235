"""Which cache holds which prefix: a bounded prediction.

An entry is one cut of a chain: hash -> bitmask of slots, a plain int. A slot is one life of one cache: of a worker's
device or host memory, or of a store that workers share. When an engine restarts with an empty cache, that cache gets a
fresh slot and the bits of the old one mean nothing any more. Because hashes are chained, a prompt is looked up from its
start: the set of slots that still match is the AND of the masks so far, and a slot's matched prefix ends at the cut
where it drops out. Slots that never matched cost nothing.

The lowest bits of an entry are not slots: they count the conversations that began with this cut when it was known
already, up to `MAX_SHARERS`. They distinguish a prefix that many share from the history of one conversation.

An entry without any slot is text that was computed once and is gone everywhere. It distinguishes an eviction from new
text.

Eviction without per-entry bookkeeping: entries live in generations, plain dicts, newest first. New entries go to the
newest; inserting a chain again moves its entries there too (without the bits of dead slots). When the newest is full,
an empty one is put in front and the oldest is dropped whole, which takes 0.5 ms. So an entry lives for at least
`(generations - 1) * entries_per_generation` insertions after its last use, as LRU in coarse steps. A newer copy of an
entry shadows older ones and outlives them.

Limits: `generations * entries_per_generation` entries (8 x 65,536 by default, about 100 bytes each, 50 MB full; masks
of more than 22 slots add 4 bytes for each 30 more); the first `MAX_CUTS` cuts of a chain, the rest of such a prompt is
not predicted; `MAX_SLOTS` slots. A retired slot is free again once the generation that was newest at its retirement is
gone; if none is free before that, the index restarts empty.
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
    """How much of a chain is known: by which slots, and by any slot, dead or alive.

    `drops` are masks of slots with the bytes that those have, from few to many; slots with none are left out. `shared`
    is the prefix that several conversations have begun with: (end in bytes, sharers) of each stretch with an equal
    number of them, from the start.
    """

    drops: list[tuple[int, int]]
    known_bytes: int
    shared: list[tuple[int, int]]

    @property
    def bytes_by_slot(self) -> dict[int, int]:
        """The bytes that each slot has."""
        return {slot: end for mask, end in self.drops for slot in range(mask.bit_length()) if mask >> slot & 1}


class PrefixIndex:
    """Bounded map from prefixes to the caches that hold them."""

    def __init__(self, generations: int = 8, entries_per_generation: int = 65_536) -> None:
        self._generations: list[dict[int, int]] = [{} for _ in range(generations)]
        self._lookups: list[_Lookup] = []  # of the older generations that hold anything
        self._not_older: int | None = None  # a key that none of those has, as the last walk found
        self._walked: Sequence[int] | None = None  # keys of the last walk, if the newest generation had all it found
        self._entries_per_generation = entries_per_generation
        self._rotations = 0
        self.removals = 0
        """How often entries were removed or moved away from the newest ones. While it stays the same, what was added is
        there.
        """
        self._slots: dict[str, int] = {}  # by the name of the cache
        self._live_mask = 0
        self.restarted_mask = 0
        """The slots of caches that were lost with their engines."""
        self._unused: list[int] = list(range(MAX_SLOTS + SHARER_BITS - 1, SHARER_BITS - 1, -1))
        self._retired: list[tuple[int, int]] = []  # (slot, rotations at its retirement), oldest first

    def slot_for(self, cache: str) -> int:
        """The slot of a cache, assigned at the first call. The name is the caller's choice."""
        slot = self._slots.get(cache)
        if slot is None:
            slot = self._slots[cache] = self._free_slot()
            self._live_mask |= 1 << slot
            self.restarted_mask &= ~(1 << slot)
        return slot

    def retire(self, cache: str, *, restarted: bool = False) -> None:
        """The cache is gone or empty; the next `slot_for` assigns a fresh slot. `restarted`: its engine has restarted
        or left, rather than emptied it.
        """
        slot = self._slots.pop(cache, None)
        if slot is not None:
            self._live_mask &= ~(1 << slot)
            self._retired.append((slot, self._rotations))
            if restarted:
                self.restarted_mask |= 1 << slot

    def walk(self, chain: Chain, mask: int) -> Match:
        """Matched bytes of each slot in `mask`, and the longest prefix known anywhere."""
        newest, keys, ends = self._generations[0], chain.hashes, chain.ends
        drops: list[tuple[int, int]] = []
        alive, end, known = mask, 0, len(keys)
        shared: list[tuple[int, int]] = []
        sharers = before = -1
        self._walked = keys
        rest = iter(keys)
        for slots in map(newest.get, rest):
            if slots == before:
                continue  # as most cuts are: the history of one conversation
            index = known - length_hint(rest) - 1
            if slots is None:
                slots = _older(self._lookups, keys[index])  # noqa: PLW2901 - where it is found otherwise
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
        """The longest prefix known anywhere, also on workers that have restarted since."""
        return self.walk(chain, 0).known_bytes

    def lost_to_restarts(self, chain: Chain, match: Match) -> int:
        """The bytes that were in caches which were lost with their engines; 0 if some cache has all that is known.

        `match`: what the walk of this chain has found.
        """
        if not self.restarted_mask or match.known_bytes <= (match.drops[-1][1] if match.drops else 0):
            return 0
        drops = self.walk(chain, self.restarted_mask).drops
        return drops[-1][1] if drops else 0

    def insert(self, keys: Sequence[int], slots: int, *, begins: bool = False, cached: int = 0) -> None:
        """The cuts are (or are about to be) in all caches of a mask of slots. Keys beyond `MAX_CUTS` are left out.

        `begins`: a new conversation begins with them; if they are known already it is one more sharer. `cached`: how
        many of the first cuts were in these caches at the last walk; if that was a walk of the same list of keys, and
        nothing was removed or moved since, those are skipped.
        """
        limit = self._entries_per_generation
        newest = self._generations[0]
        live_bits = self._live_mask | MAX_SHARERS
        unknown = False  # once a cut of a chain is unknown, so are all behind it
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
        """The caches of a mask of slots have lost these cuts. Their text is still known."""
        self.removals += 1
        self._walked = None
        other_slots = ~slots
        for key in keys:
            for generation in self._generations:  # the newest copy is the one that counts
                known = generation.get(key)
                if known is not None:
                    generation[key] = known & other_slots
                    break

    def forget(self, keys: Iterable[int], slots: int) -> None:
        """The cuts were not computed in these caches after all.

        Entries that are left without any slot are deleted, so that a prompt that was never computed is not known.
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
    """Add keys all at once, which is faster, if all are unknown and different, and fit. False if they do not."""
    if len(newest) + len(keys) > limit:
        return False
    added = dict.fromkeys(keys, slots)
    if len(added) < len(keys) or not newest.keys().isdisjoint(added):
        return False
    newest.update(added)
    return True
