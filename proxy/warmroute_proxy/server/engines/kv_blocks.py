"""Matches the blocks in an engine's KV events with the cuts (hashed prefixes) of the prompts that this proxy sent.

An engine identifies a block by a hash over its tokens. The prefix index identifies a cut of a prompt by a hash over the
text up to the cut, and the proxy does not tokenise. But the proxy sends each prompt under a tag, and the engine's
events give the tag with the blocks that the prompt stored. An event about a run of blocks also names the block before
the run. So the depth of a block is known by counting, and its position in the prompt is depth times block size, in
tokens. When the request has ended, the prompt's tokens per byte are known, and with them the positions of the cuts:

    a cut is cached for as long as a block in which it ends is cached.

A cut may end in several blocks: if prompts diverge in the middle of a block, each prompt has its own block there. If a
block is cached, all blocks before it are cached, too. So the first block of a run also holds the cuts that end shortly
before the run (`SLACK`), because the end of a cut is an estimate. Engines evict a prompt from its end to its start, so
an error of a few blocks matters only until the eviction gets there.

If another process or proxy sent a prompt, events about its blocks may arrive before this process knows the prompt.
The blocks are kept until then, and later events update their tiers.

A proxy that starts beside a warm engine has not seen the events of the blocks that were cached before, such as those of
a system prompt. Blocks behind them are kept until their request has ended. Then the request's cached tokens give the
depth of the block before them. That block stands for all cached ones, and so holds the prompt's last cuts before it.

With EAGLE (speculative decoding) an engine caches pairs of neighbouring tokens, so a block reaches one token further.

Limits: the newest `MAX_TAGS` prompts are kept, each with at most `MAX_RUNS` runs until its request has ended. Blocks
are kept in two generations of `MAX_BLOCKS` blocks each; the older generation is dropped whole. A block takes about 150
bytes; at 64 tokens a block, both generations hold 16 million tokens. A block has `MAX_CUTS_PER_BLOCK` cuts at most.
`MAX_EARLY_BLOCKS` blocks are kept whose prompt or depth is not known yet. Blocks behind an unknown block count as
unknown, and are not matched if the engine reports no cached tokens.
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
MAX_EARLY_BLOCKS: Final = 8192
SLACK: Final = 0.02
"""How far before a run the cuts of its first block may end, as a share of the run's depth, but at least two blocks."""

_BITS: Final[dict[Tier, int]] = {"device": 1, "host": 2, "storage": 4}
_DEPTH: Final = 8  # a block's value is its depth times `_DEPTH`, plus the bits of its tiers


class Matched(NamedTuple):
    """The cuts of an event's blocks, and how many of the blocks are known."""

    keys: list[int]
    known: int


class _Run(NamedTuple):
    first: int
    hashes: Sequence[int]
    block_size: int
    reach: int


class _Early(NamedTuple):
    hashes: Sequence[int]
    parent: int | None
    block_size: int
    pairs: bool


class _Prompt:
    __slots__ = ("cached_tokens", "chain", "early_blocks", "runs", "stored_tokens", "tokens_per_byte")

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.runs: list[_Run] = []  # runs that arrived before the prompt's tokens were known
        self.tokens_per_byte = 0.0  # 0 until the prompt's tokens are known
        self.stored_tokens = 0  # of prompt and answer: an engine stores both
        self.cached_tokens: int | None = None
        self.early_blocks = 0  # in kept runs, since it is not known how deep they are


class KvBlocks:
    """The blocks of one worker. Hashes are the engine's, of blocks; keys are hashes of cuts in the prefix index."""

    def __init__(self, max_blocks: int = MAX_BLOCKS, max_tags: int = MAX_TAGS) -> None:
        self._max_blocks = max_blocks
        self._max_tags = max_tags
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()
        self.clear()

    def clear(self) -> None:
        """Forget all blocks, because the cache is empty or events were missed. Later events name new blocks."""
        self._newer: dict[int, int] = {}
        self._older: dict[int, int] = {}
        self._newer_cuts: dict[int, tuple[int, ...]] = {}  # block -> the cuts that end in it
        self._older_cuts: dict[int, tuple[int, ...]] = {}
        self._block_counts: dict[tuple[int, int], int] = {}  # (cut, tier bit) -> blocks in that tier that hold the cut
        self._early: OrderedDict[str, list[_Early]] = OrderedDict()  # tag that is not known yet -> its runs
        self._early_blocks = 0
        self._early_held: dict[int, int] = {}  # block -> number of its early runs times `_DEPTH`, plus tier bits
        for prompt in self._prompts.values():
            prompt.early_blocks = 0

    def expect(self, tag: str, chain: Chain) -> None:
        prompt = self._prompts[tag] = _Prompt(chain)
        if len(self._prompts) > self._max_tags:
            self._prompts.popitem(last=False)
        self._begin_early(tag, prompt)

    def settled(self, tag: str, tokens: int, cached_tokens: int | None = None, answer_tokens: int = 0) -> list[int]:
        """Match the blocks of a prompt, whose number of tokens is now known. Returns the prompt's cuts that are no
        longer in the device tier. `cached_tokens`: how many were cached when the request began; None if unknown.
        """
        prompt = self._prompts.get(tag)
        if prompt is None or tokens <= 0:
            return []
        prompt.tokens_per_byte = tokens / max(prompt.chain.total_bytes, 1)
        prompt.stored_tokens, prompt.cached_tokens = tokens + answer_tokens, cached_tokens
        runs, prompt.runs = prompt.runs + self._place_early(tag, prompt), []
        if cached_tokens is None:
            self._drop_early(tag)
        return [key for run in runs for key in self._match(prompt, run)]

    def stored(
        self, hashes: Sequence[int], parent: int | None, tag: str | None, block_size: int, tier: Tier, *, pairs: bool
    ) -> Matched:
        """Record that a run of blocks after `parent` was stored in a tier. `pairs`: its units are pairs of tokens."""
        prompt = self._prompts.get(tag) if tag is not None else None
        if self._early_held:
            for block in hashes:
                if block in self._early_held:
                    self._early_held[block] |= _BITS[tier]
        early = _Early(hashes, parent, block_size, pairs)
        run = self._begin_run(prompt, early) if prompt is not None else None
        runs = [] if run is None else [run]
        if run is None and tag is not None and hashes and block_size > 0:
            runs = self._keep_early(tag, prompt, early, _BITS[tier])
        known = [block for block in hashes if self._enter(block, _BITS[tier])]
        if prompt is not None and prompt.tokens_per_byte:
            for run in runs:
                self._match(prompt, run)
        return Matched([key for block in known for key in self._cuts_of(block)], len(known))

    def removed(self, hashes: Iterable[int], tier: Tier) -> Matched:
        """Record that blocks were removed from a tier. Returns the cuts that no block in the tier holds any more. A
        block that is in no tier any more is forgotten.
        """
        keys: list[int] = []
        known = 0
        for block in hashes:
            found = self._find(block)
            if found is not None:
                known += 1
                keys += self._leave(block, found, _BITS[tier])
            if block in self._early_held:
                self._early_held[block] &= ~_BITS[tier]
        return Matched(keys, known)

    @property
    def blocks(self) -> int:
        return len(self._newer) + len(self._older)

    def _find(self, block: int) -> int | None:
        found = self._newer.get(block)
        return self._older.get(block) if found is None else found

    def _cuts_of(self, block: int) -> tuple[int, ...]:
        return self._newer_cuts.get(block) or self._older_cuts.get(block, ())

    def _keep_early(self, tag: str, prompt: _Prompt | None, run: _Early, bit: int) -> list[_Run]:
        """Keep a run whose prompt another process may report later, or whose depth the end of its request may give.
        Returns the prompt's runs that begin now.
        """
        if prompt is not None:
            if prompt.tokens_per_byte and prompt.cached_tokens is None:
                return []
            prompt.early_blocks += len(run.hashes)
        self._early.setdefault(tag, []).append(run)
        self._early_blocks += len(run.hashes)
        for block in run.hashes:
            self._early_held[block] = (self._early_held.get(block, 0) | bit) + _DEPTH
        while self._early_blocks > MAX_EARLY_BLOCKS or len(self._early) > self._max_tags:
            self._drop_early(next(iter(self._early)))
        return [] if prompt is None else self._place_early(tag, prompt)

    def _drop_early(self, tag: str) -> None:
        for run in self._early.pop(tag, ()):
            self._release_early(run)
        if tag in self._prompts:
            self._prompts[tag].early_blocks = 0

    def _release_early(self, run: _Early) -> None:
        self._early_blocks -= len(run.hashes)
        for block in run.hashes:
            held = self._early_held[block] - _DEPTH
            if held < _DEPTH:
                del self._early_held[block]
            else:
                self._early_held[block] = held

    def _place_early(self, tag: str, prompt: _Prompt) -> list[_Run]:
        """Begin the kept runs of a prompt, behind its cached tokens, if its request has ended and all runs have come.
        Otherwise the prompt's first run may be deeper, since another request stored the same blocks at that time.
        """
        early = self._early.get(tag)
        if early is None or prompt.cached_tokens is None:
            return []
        _, parent, size, pairs = early[0]
        first = prompt.cached_tokens // size
        if first + prompt.early_blocks < prompt.stored_tokens // size - 1:
            return []
        if first and parent is not None and self._find(parent) is None:
            self._set_depths([parent], first - 1)
            self._enter(parent, _BITS["device"])
            stop = bisect_right(prompt.chain.ends, (first * size + pairs) / prompt.tokens_per_byte)
            self._newer_cuts[parent] = tuple(prompt.chain.hashes[max(0, stop - MAX_CUTS_PER_BLOCK) : stop])
            self._hold(self._newer_cuts[parent], _BITS["device"])
        return self._begin_early(tag, prompt)

    def _begin_early(self, tag: str, prompt: _Prompt) -> list[_Run]:
        """Begin the kept runs of a prompt, and return them. Those behind an unknown block are kept further."""
        begun, left = [], []
        for early in self._early.pop(tag, ()):
            run = self._begin_run(prompt, early)
            if run is None:
                left.append(early)
                continue
            begun.append(run)
            for block in early.hashes:
                self._enter_again(block)
            self._release_early(early)
        prompt.early_blocks = sum(len(early.hashes) for early in left)
        if left:
            self._early[tag] = left
        return begun

    def _begin_run(self, prompt: _Prompt, early: _Early) -> _Run | None:
        """Set the depths of a run's blocks, and keep the run until its prompt's tokens are known. None if the block
        before the run is not known.
        """
        hashes, parent, block_size, pairs = early
        before = self._find(parent) if parent is not None else -_DEPTH
        if before is None or block_size <= 0 or not hashes:
            return None
        run = _Run(before // _DEPTH + 1, hashes, block_size, int(pairs))
        self._set_depths(hashes, run.first)
        if not prompt.tokens_per_byte and len(prompt.runs) < MAX_RUNS:
            prompt.runs.append(run)
        return run

    def _enter_again(self, block: int) -> None:
        """Record the tiers of a block whose events came before its prompt. Forget the block if it is in no tier."""
        bits = self._early_held[block] % _DEPTH
        for bit in _BITS.values():
            if bits & bit:
                self._enter(block, bit)
        if not bits and self._newer.get(block, 1) % _DEPTH == 0:
            del self._newer[block]

    def _set_depths(self, hashes: Sequence[int], first: int) -> None:
        """Number the depths of blocks from `first` on, and move the blocks to the newer generation."""
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

    def _match(self, prompt: _Prompt, run: _Run) -> list[int]:
        """Record the cuts that a run of blocks holds. Returns those that no block in the device tier holds."""
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
                gone += [key for key in keys if (key, _BITS["device"]) not in self._block_counts]
        return gone

    def _enter(self, block: int, bit: int) -> bool:
        """Record that a block is in a tier. Returns whether the block is known."""
        generation = self._newer if block in self._newer else self._older
        found = generation.get(block)
        if found is None:
            return False
        if not found & bit:
            generation[block] = found | bit
            self._hold(self._cuts_of(block), bit)
        return True

    def _leave(self, block: int, found: int, bit: int) -> list[int]:
        """Record that a block is no longer in a tier. Returns the cuts that no block in the tier holds any more."""
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
            self._block_counts[key, bit] = self._block_counts.get((key, bit), 0) + 1

    def _release(self, cuts: Iterable[int], bit: int) -> list[int]:
        """Record that one block fewer in a tier holds these cuts. Returns the cuts that no block in the tier holds."""
        gone = []
        for key in cuts:
            left = self._block_counts.get((key, bit), 1) - 1
            if left:
                self._block_counts[key, bit] = left
            else:
                self._block_counts.pop((key, bit), None)
                gone.append(key)
        return gone

    def _rotate(self) -> None:
        """Forget the older generation. Later events about its blocks are ignored."""
        for block, cuts in self._older_cuts.items():
            for bit in _BITS.values():
                if self._older[block] & bit:
                    self._release(cuts, bit)
        self._newer, self._older = {}, self._newer
        self._newer_cuts, self._older_cuts = {}, self._newer_cuts


def _cuts_in(prompt: _Prompt, run: _Run) -> dict[int, tuple[int, ...]]:
    """Index of a block of the run -> the cuts that end in it; -1 for cuts that end shortly before the run."""
    ends, ratio = prompt.chain.ends, prompt.tokens_per_byte
    first, count, size, reach = run.first, len(run.hashes), run.block_size, run.reach
    since = first - max(2, int(SLACK * first))
    start = bisect_right(ends, (since * size + reach) / ratio) if since > 0 else 0
    stop = bisect_right(ends, ((first + count) * size + reach) / ratio)
    found: dict[int, tuple[int, ...]] = {}
    for at in range(start, stop):
        number = -int(-(ends[at] * ratio - reach) // size) - 1 - first  # index of the block in which the cut ends
        number = min(max(number, -1), count - 1)
        if first == 0:
            number = max(number, 0)
        cuts = found.get(number, ())
        if len(cuts) < MAX_CUTS_PER_BLOCK:
            found[number] = (*cuts, prompt.chain.hashes[at])
    return found
