"""Joins the blocks that an engine publishes with the cuts of the prompts that this proxy sent.

An engine names a block by a hash over its tokens, the prefix index names a cut by a hash over the text, and the proxy
does not tokenise. But each request is sent with a tag that comes back with the blocks which it stored, and every such
run of blocks names the block before it. So the depth of a block is known by counting, its place in the prompt is
depth times block size, in tokens, and the prompt's tokens per byte, known when its turn is settled, give the cut:

    a cut is in a cache as long as a block in which it ends is.

It may end in several: where prompts part in the middle of a block, each has its own. A block that is there has all
before it there too, so the first block of a run also holds the cuts that end shortly before it (`SLACK`): where
exactly a cut ends is an estimate. Engines evict from the end of a prompt to its start, so an error of some blocks
matters only for as long as the eviction takes to get there.

With EAGLE a unit of the tree is a pair of neighbouring tokens: the units of a block reach one token further.

Limits: the newest `MAX_TAGS` prompts, with at most `MAX_RUNS` runs until they are settled; twice `MAX_BLOCKS` blocks in
two generations, the older one dropped whole (about 150 bytes each; at 64 tokens a block that is 16 million tokens);
`MAX_CUTS_PER_BLOCK`. Blocks that follow one which is not known are not joined, and counted as such.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from warmroute_proxy.core.cache.tiers import Tier
from warmroute_proxy.core.prompt.chain import Chain

MAX_TAGS: Final = 1024
MAX_RUNS: Final = 256
MAX_BLOCKS: Final = 131_072
MAX_CUTS_PER_BLOCK: Final = 64
SLACK: Final = 0.02
"""How far before a run of blocks cuts are held by it, as a share of its depth; two blocks at least."""

_BITS: Final[dict[Tier, int]] = {"device": 1, "host": 2, "storage": 4}
_DEPTH: Final = 8  # what a block is: its depth times this, and the bits of its tiers


class Joined(NamedTuple):
    """Cuts that are concerned, and how many of the blocks are known."""

    keys: list[int]
    known: int


class _Run(NamedTuple):
    first: int
    hashes: Sequence[int]
    block_size: int
    reach: int


class _Prompt:
    __slots__ = ("chain", "runs", "tokens_per_byte")

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.runs: list[_Run] = []  # that came before the prompt's tokens were known
        self.tokens_per_byte = 0.0  # until then


class KvBlocks:
    """The blocks of one worker. Hashes are the engine's; keys are those of the prefix index."""

    def __init__(self, max_blocks: int = MAX_BLOCKS, max_tags: int = MAX_TAGS) -> None:
        self._max_blocks = max_blocks
        self._max_tags = max_tags
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()
        self.clear()

    def clear(self) -> None:
        """The cache is empty, or blocks were missed. Prompts under way will store their blocks anew."""
        self._newer: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self._newer_cuts: dict[int, tuple[int, ...]] = {}  # of blocks in which cuts end
        self._older_cuts: dict[int, tuple[int, ...]] = {}
        self._holders: dict[tuple[int, int], int] = {}  # (cut, bit of a tier) -> blocks there that hold it

    def expect(self, tag: str, chain: Chain) -> None:
        """A prompt was sent under a tag."""
        self._prompts[tag] = _Prompt(chain)
        if len(self._prompts) > self._max_tags:
            self._prompts.popitem(last=False)

    def settled(self, tag: str, tokens: int) -> list[int]:
        """A prompt has so many tokens: its blocks are joined now. Those of its cuts that have left the device."""
        prompt = self._prompts.get(tag)
        if prompt is None or tokens <= 0:
            return []
        prompt.tokens_per_byte = tokens / max(prompt.chain.total_bytes, 1)
        runs, prompt.runs = prompt.runs, []
        return [key for run in runs for key in self._join(prompt, run)]

    def stored(
        self, hashes: Sequence[int], parent: int | None, tag: str | None, block_size: int, tier: Tier, *, pairs: bool
    ) -> Joined:
        """A run of blocks behind `parent` is in a tier now: the cuts it holds. `pairs`: units are pairs of tokens."""
        prompt = self._prompts.get(tag) if tag is not None else None
        before = self._find(parent) if parent is not None else -_DEPTH
        run = None
        if prompt is not None and before is not None and block_size > 0 and hashes:
            run = _Run(before // _DEPTH + 1, hashes, block_size, int(pairs))
            self._place_all(hashes, run.first)
        known = [block for block in hashes if self._enter(block, _BITS[tier])]
        if prompt is not None and run is not None:
            if prompt.tokens_per_byte:
                self._join(prompt, run)
            elif len(prompt.runs) < MAX_RUNS:
                prompt.runs.append(run)
        return Joined([key for block in known for key in self._cuts_of(block)], len(known))

    def removed(self, hashes: Iterable[int], tier: Tier) -> Joined:
        """Blocks left a tier: the cuts that no block there holds any more. A block that is in no tier is forgotten."""
        keys: list[int] = []
        known = 0
        for block in hashes:
            found = self._find(block)
            if found is not None:
                known += 1
                keys += self._leave(block, found, _BITS[tier])
        return Joined(keys, known)

    @property
    def blocks(self) -> int:
        """Blocks held."""
        return len(self._newer) + len(self._older)

    def _find(self, block: int) -> int | None:
        found = self._newer.get(block)
        return self._older.get(block) if found is None else found

    def _cuts_of(self, block: int) -> tuple[int, ...]:
        return self._newer_cuts.get(block) or self._older_cuts.get(block, ())

    def _place_all(self, hashes: Sequence[int], first: int) -> None:
        """Blocks are at depths from `first` on, and become newer ones, with what is known of them."""
        newer, older = self._newer, self._older
        for depth, block in enumerate(hashes, first):
            if block in newer:
                newer[block] = depth * _DEPTH + newer[block] % _DEPTH
                continue
            if len(newer) >= self._max_blocks:
                self._rotate()
                newer, older = self._newer, self._older
            newer[block] = depth * _DEPTH + older.pop(block, 0) % _DEPTH
            cuts = self._older_cuts.pop(block, None)
            if cuts is not None:
                self._newer_cuts[block] = cuts

    def _join(self, prompt: _Prompt, run: _Run) -> list[int]:
        """Note the cuts that a run of blocks holds. Those whose block has left the device, and no other holds."""
        gone = []
        for number, keys in _cuts_in(prompt, run).items():
            block = run.hashes[max(number, 0)]
            found = self._find(block) or 0
            known = self._cuts_of(block)
            if found % _DEPTH:
                fresh = tuple([key for key in keys if key not in known])[: MAX_CUTS_PER_BLOCK - len(known)]
                (self._newer_cuts if block in self._newer else self._older_cuts)[block] = known + fresh
                for bit in _BITS.values():
                    if found & bit:
                        self._hold(fresh, bit)
            if number >= 0 and not found & _BITS["device"]:
                gone += [key for key in keys if (key, _BITS["device"]) not in self._holders]
        return gone

    def _enter(self, block: int, bit: int) -> bool:
        """A block is in a tier now; whether it is known at all."""
        generation = self._newer if block in self._newer else self._older
        found = generation.get(block)
        if found is None:
            return False
        if not found & bit:
            generation[block] = found | bit
            self._hold(self._cuts_of(block), bit)
        return True

    def _leave(self, block: int, found: int, bit: int) -> list[int]:
        if not found & bit:
            return []
        gone = self._release(self._cuts_of(block), bit)
        left = found & ~bit
        generation, its_cuts = (
            (self._newer, self._newer_cuts) if block in self._newer else (self._older, self._older_cuts)
        )
        if left % _DEPTH:
            generation[block] = left
        else:
            del generation[block]
            its_cuts.pop(block, None)
        return gone

    def _hold(self, cuts: Iterable[int], bit: int) -> None:
        for key in cuts:
            self._holders[key, bit] = self._holders.get((key, bit), 0) + 1

    def _release(self, cuts: Iterable[int], bit: int) -> list[int]:
        """One block less holds the cuts; those that none holds."""
        gone = []
        for key in cuts:
            left = self._holders.get((key, bit), 1) - 1
            if left:
                self._holders[key, bit] = left
            else:
                self._holders.pop((key, bit), None)
                gone.append(key)
        return gone

    def _rotate(self) -> None:
        """Forget the older generation. What becomes of its blocks will not be known."""
        for block, cuts in self._older_cuts.items():
            for bit in _BITS.values():
                if self._older[block] & bit:
                    self._release(cuts, bit)
        self._newer, self._older = {}, self._newer
        self._newer_cuts, self._older_cuts = {}, self._newer_cuts


def _cuts_in(prompt: _Prompt, run: _Run) -> dict[int, tuple[int, ...]]:
    """Number of a block of the run -> the cuts that end in it; -1 for those that end shortly before the run."""
    ends, ratio = prompt.chain.ends, prompt.tokens_per_byte
    first, count, size, reach = run.first, len(run.hashes), run.block_size, run.reach
    since = first - max(2, int(SLACK * first))
    start = bisect_right(ends, (since * size + reach) / ratio) if since > 0 else 0
    stop = bisect_right(ends, ((first + count) * size + reach) / ratio)
    found: dict[int, tuple[int, ...]] = {}
    for at in range(start, stop):
        number = -int(-(ends[at] * ratio - reach) // size) - 1 - first  # the block that the end lies in
        number = min(max(number, -1), count - 1)
        if first == 0:
            number = max(number, 0)
        cuts = found.get(number, ())
        if len(cuts) < MAX_CUTS_PER_BLOCK:
            found[number] = (*cuts, prompt.chain.hashes[at])
    return found
