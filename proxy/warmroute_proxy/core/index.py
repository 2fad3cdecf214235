"""Which worker has computed which prefix: a bounded prediction.

An entry is one cut of a chain: hash -> bitmask of slots, a plain int. A slot is one life of one worker: when an engine
restarts with an empty cache, its worker gets a fresh slot and the bits of the old one mean nothing any more. Because
hashes are chained, a prompt is looked up from its start: the set of workers that still match is the AND of the masks
so far, and a worker's matched prefix ends at the cut where it drops out. Workers that never matched cost nothing.

Eviction without per-entry bookkeeping: entries live in generations, plain dicts, newest first. New entries go to the
newest; inserting a chain again moves its entries there too (without the bits of dead slots). When the newest is full,
an empty one is put in front and the oldest is dropped whole, which takes 0.5 ms. So an entry lives for at least
`(generations - 1) * entries_per_generation` insertions after its last use, as LRU in coarse steps. A newer copy of an
entry shadows older ones and outlives them.

Limits: `generations * entries_per_generation` entries (8 x 65,536 by default, 97 bytes each, 50 MB full); the first
`MAX_CUTS` cuts of a chain, the rest of such a prompt is not predicted; `MAX_SLOTS` slots. A retired slot is free again
once the generation that was newest at its retirement is gone; if none is free before that, the index restarts empty.
"""

from typing import Final, NamedTuple

from warmroute_proxy.core.fingerprint import Chain

MAX_CUTS: Final = 8192
MAX_SLOTS: Final = 1024


class Match(NamedTuple):
    """How much of a chain is known: bytes per slot (slots with none are left out), and by any slot, dead or alive."""

    bytes_by_slot: dict[int, int]
    known_bytes: int


class PrefixIndex:
    """Bounded map from prefixes to the workers that have computed them."""

    def __init__(self, generations: int = 8, entries_per_generation: int = 65_536) -> None:
        self._generations: list[dict[int, int]] = [{} for _ in range(generations)]
        self._entries_per_generation = entries_per_generation
        self._rotations = 0
        self._slots: dict[str, int] = {}
        self._live_mask = 0
        self._unused: list[int] = list(range(MAX_SLOTS - 1, -1, -1))
        self._retired: list[tuple[int, int]] = []  # (slot, rotations at its retirement), oldest first

    def slot_for(self, worker_id: str) -> int:
        """The worker's slot, made when it is first asked for."""
        slot = self._slots.get(worker_id)
        if slot is None:
            slot = self._slots[worker_id] = self._free_slot()
            self._live_mask |= 1 << slot
        return slot

    def retire(self, worker_id: str) -> None:
        """The worker's cache is gone (restart, removal); it gets a fresh slot when it is next asked for."""
        slot = self._slots.pop(worker_id, None)
        if slot is not None:
            self._live_mask &= ~(1 << slot)
            self._retired.append((slot, self._rotations))

    def walk(self, chain: Chain, mask: int) -> Match:
        """Matched bytes of each slot in `mask`, and the longest prefix known anywhere."""
        generations, ends = self._generations, chain.ends
        newest = generations[0]
        bytes_by_slot: dict[int, int] = {}
        alive, end = mask, 0
        for index, key in enumerate(chain.hashes):
            slots = newest.get(key)
            if slots is None:
                slots = _older(generations, key)
                if slots is None:
                    break
            if alive and alive & slots != alive:
                if end:
                    _record(bytes_by_slot, alive & ~slots, end)
                alive &= slots
            end = ends[index]
        if alive and end:
            _record(bytes_by_slot, alive, end)
        return Match(bytes_by_slot, end)

    def known_bytes(self, chain: Chain) -> int:
        """The longest prefix known anywhere, also on workers that have restarted since."""
        return self.walk(chain, 0).known_bytes

    def insert(self, chain: Chain, slot: int, from_cut: int = 0) -> None:
        """The slot's worker has computed the chain, or is about to. Entries before `from_cut` are left as they are."""
        bit = 1 << slot
        room = self._entries_per_generation
        newest = self._generations[0]
        for key in chain.hashes[from_cut:MAX_CUTS]:
            slots = newest.get(key)
            if slots is None:
                if len(newest) >= room:
                    newest = self._rotate()
                older = _older(self._generations, key)
                newest[key] = older & self._live_mask | bit if older else bit
            elif not slots & bit:
                newest[key] = slots | bit

    def forget(self, chain: Chain, slot: int, from_cut: int) -> None:
        """The slot's worker has not computed the chain from `from_cut` on after all.

        Entries that are left without any slot go, so that a prompt which nobody has computed is not known either.
        """
        kept = ~(1 << slot)
        for key in chain.hashes[from_cut:MAX_CUTS]:
            for generation in self._generations:
                slots = generation.get(key)
                if slots is None:
                    continue
                if slots & kept:
                    generation[key] = slots & kept
                else:
                    del generation[key]

    @property
    def entries(self) -> int:
        """Entries held, shadowed ones included."""
        return sum(map(len, self._generations))

    @property
    def rotations(self) -> int:
        """Generations dropped so far."""
        return self._rotations

    def _rotate(self) -> dict[int, int]:
        self._generations.insert(0, {})
        self._generations.pop()
        self._rotations += 1
        while self._retired and self._rotations - self._retired[0][1] >= len(self._generations):
            self._unused.append(self._retired.pop(0)[0])
        return self._generations[0]

    def _free_slot(self) -> int:
        if not self._unused:
            if not self._retired:
                raise OverflowError(f"more than {MAX_SLOTS} workers")
            self._generations = [{} for _ in self._generations]
            self._unused = [slot for slot, _ in self._retired]
            self._retired.clear()
        return self._unused.pop()


def _older(generations: list[dict[int, int]], key: int) -> int | None:
    """The newest entry for a key that is not in the newest generation."""
    for generation in generations:
        slots = generation.get(key)
        if slots is not None:
            return slots
    return None


def _record(bytes_by_slot: dict[int, int], mask: int, end: int) -> None:
    """Note `end` for each slot in `mask`."""
    while mask:
        low = mask & -mask
        bytes_by_slot[low.bit_length() - 1] = end
        mask ^= low
