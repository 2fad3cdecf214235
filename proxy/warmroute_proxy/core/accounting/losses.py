"""Explains why prompt tokens were not cached: every uncached token gets exactly one loss class of `contract.receipt`.

The prompt is a line of P tokens. The engine found the first C tokens cached, so [C, P) has to be explained. Two more
points, R and K, divide this interval:

    0 ------------- C ---------------- R --- K ------------------------------ P
      cached          reusable, missed   |     text that was never computed before
                                         page rounding

K is the end of known text: text that some worker has computed before. For a new lineage (conversation branch), the
prefix index says what is known, and tokens beyond K are `cold`. For a lineage with a previous turn, K is the end of
that turn's prompt (an exact count), with these exceptions:

- According to the index, known text ends clearly earlier, because the client rewrote part of the old prompt. K is the
  end of what the index knows, and the rest of the old prompt is `prefix_changed`.
- The index knows text beyond the old prompt, from another conversation: K is the end of what the index knows.
- The old and the new prompt were compared and differ (`rewritten`), and the engine found what the index expects, within
  the index's error. A change near the end of a long prompt is within that error too, so K is C. But if the index knows
  the whole new prompt, the client sent an older prompt again, and K is the end of the prompt.

Tokens beyond the previous prompt are `new`. They begin with the previous turn's answer. If prefill and decode run on
separate engines, the tokens of that answer are `not_kept`, because their KV stayed with the decode engine.

R is K cut to what an engine can reuse: whole pages, and never the last token of the prompt. [R, K) is `page_rounding`.

[C, R) should have been cached and was not. If the tenant's cache salt was changed (a new salt epoch), this explains all
of it. Otherwise up to one page still counts as rounding, because page borders of estimates are off by one. Longer gaps
are explained by their position, and by what was seen (`Seen`):

- `not_computed_yet`: other requests were still computing this text when the turn was sent, and the previous turn had
  not computed it in this region.
- `evicted`: this worker was expected to hold the text, and an eviction was seen. `forgotten`: this worker was expected
  to hold the text, and its server shows neither its pool nor evictions.
- `moved`: only another worker of this region was expected to hold the text. `elsewhere`: only another region was.
- `evicted` or `forgotten`, too: text that the index knows, since it was computed once, but that no worker holds.
- `unknown`: all other tokens. No token gets another class merely because it is left over.

A worker is expected to hold what the index predicts and what the previous turn computed there, unless its engine has
restarted or left since.

The index's token counts are estimated from bytes and are off by a few per cent; counts of turns are exact. So a
difference between an estimate and a count is ignored up to the share `ESTIMATE_ERROR` plus a page. Classes that blame a
worker or a client (`evicted`, `moved`, `prefix_changed`) are given only for a larger difference. Within one prompt,
bytes per token differ more, for example between tools and prose (`RATIO_ERROR`). If a new lineage finds only the
beginning of text that the index expects to be cached whole, the index was wrong about the number of tokens, not about
the cache. Within `RATIO_ERROR` the rest is `cold`.
"""

from typing import Final

from warmroute_proxy.core.base.compiled import Frozen

ESTIMATE_ERROR: Final = 0.03
"""The relative error of token counts that are estimated from bytes."""

RATIO_ERROR: Final = 0.25
"""How far the bytes per token of a part of a prompt may differ from those of the whole prompt, as a share."""


class Seen(Frozen, frozen=True):
    """What was observed of the caches when a turn found less than was expected.

    `evicted_here`: the chosen worker has evicted something since its start, or must have; it may have been this text.
    `evicted`: some worker has evicted something. `forgets`: the server reports neither its pool nor evictions.
    `waiting`: how many tokens of the prompt other requests, here or elsewhere, were still computing when this turn was
    sent.
    """

    evicted_here: bool = False
    evicted: bool = False
    forgets: bool = False
    waiting: int = 0


NOTHING_SEEN: Final = Seen()

PLAIN: Final = frozenset({"new", "cold", "page_rounding", "not_kept"})
"""Classes of a turn that missed nothing. If a turn has no other classes, its losses are explained without looking at
caches.
"""


class LastTurn(Frozen, frozen=True):
    """What `classify` needs of the previous turn of a lineage.

    `completion_tokens`: the part of the answer that a client sends back, without reasoning. `same_worker`: the worker
    chosen now (in PD the prefill worker) computed the previous turn's prompt; `same_region`: a worker of this worker's
    region did. `salt_changed`: the tenant's salt epoch has changed since. `rewritten`: the client has changed a part of
    the previous prompt, or a setting with which an engine renders it; `repeated`: the new prompt begins with the whole
    previous prompt.
    """

    prompt_tokens: int
    completion_tokens: int
    same_worker: bool
    salt_changed: bool
    same_region: bool = True
    rewritten: bool = False
    repeated: bool = False


class IndexEstimates(Frozen, frozen=True):
    """The lengths of the prefixes of the prompt that the index predicts, in tokens.

    `known`: the longest prefix that the index knows at all for this tenant. `here`: the prefix on the chosen worker;
    `moved`: on the best other worker of its region; `elsewhere`: in the best other region. If another region announced
    a prefix as computed, it counts as known, and as held in that region. `restarted`: lost with engines that have
    restarted or left.
    """

    known: int
    here: int
    moved: int
    elsewhere: int = 0
    restarted: int = 0
    seen: Seen = NOTHING_SEEN

    def scaled(self, prompt_tokens: int, estimated_tokens: int) -> "IndexEstimates":
        """The estimates, scaled for a prompt that was estimated at `estimated_tokens` and has `prompt_tokens`."""
        if estimated_tokens <= 0 or estimated_tokens == prompt_tokens:
            return self
        ratio = prompt_tokens / estimated_tokens
        counts = (self.known, self.here, self.moved, self.elsewhere, self.restarted)
        known, here, moved, elsewhere, restarted = [int(count * ratio) for count in counts]
        return IndexEstimates(known, here, moved, elsewhere, restarted, self.seen)


def classify(
    *,
    prompt_tokens: int,
    cached_tokens: int,
    page_size: int,
    estimates: IndexEstimates,
    last_turn: LastTurn | None,
    disaggregated: bool,
    misreported: bool = False,
    cached_reported: bool = True,
) -> dict[str, int]:
    """Loss class -> tokens, summing to `prompt_tokens - cached_tokens`; classes without tokens are left out.

    `misreported`: the engine's cached count was out of range, so losses cannot be explained. `cached_reported`: False
    if the engine gave no cached count.
    """
    prompt, cached, page = prompt_tokens, cached_tokens, page_size
    if page < 1 or not 0 <= cached <= prompt:
        prompt, page = max(0, prompt), max(1, page)
        cached = min(max(0, cached), prompt)
    if misreported:
        return {"engine_misreport": prompt - cached} if prompt > cached else {}
    losses: dict[str, int] = {}
    end = _known_end(losses, prompt, cached, page, estimates.known, last_turn, disaggregated)
    reusable = end if end < prompt else prompt - 1
    reusable -= reusable % page
    begins = cached if cached > reusable else reusable  # noqa: FURB136 - max() takes three times as long
    if end > begins:
        losses["page_rounding"] = end - begins
    missed = reusable - cached
    if missed > 0:
        if not cached_reported:
            losses["unknown"] = missed
        elif last_turn is not None and last_turn.salt_changed:
            losses["salt_changed"] = missed
        elif missed <= page:
            losses["page_rounding"] = losses.get("page_rounding", 0) + missed
        else:
            _missed(losses, cached, reusable, estimates, last_turn, page)
    return losses


def _known_end(
    losses: dict[str, int],
    prompt: int,
    cached: int,
    page: int,
    known: int,
    last_turn: LastTurn | None,
    disaggregated: bool,
) -> int:
    """Returns K, where known text ends, and adds the classes of the tokens beyond K to `losses`."""
    end = known if cached < known else cached  # noqa: FURB136 - max() takes three times as long
    if end > prompt:  # noqa: PLR1730
        end = prompt
    if last_turn is None:
        if end < prompt:
            losses["cold"] = prompt - end
        return end
    previous = last_turn.prompt_tokens if last_turn.prompt_tokens < prompt else prompt  # noqa: FURB136
    # The hashes in the index depend on the salt. So after a change of the salt, the index does not know the old text.
    if last_turn.rewritten and previous - cached > page and end - cached <= _error(end, page):
        if end - cached > page and end < prompt:
            end = cached
    elif last_turn.salt_changed or abs(end - previous) <= ESTIMATE_ERROR * previous + page:
        end = previous
    _beyond_known(losses, prompt, cached if cached > end else end, previous, last_turn, disaggregated)  # noqa: FURB136
    return end


def _beyond_known(
    losses: dict[str, int], prompt: int, start: int, previous: int, last_turn: LastTurn, disaggregated: bool
) -> None:
    if start < previous:
        losses["prefix_changed"] = previous - start
        start = previous
    if disaggregated:
        answer_end = max(start, min(max(last_turn.prompt_tokens, 0) + max(last_turn.completion_tokens, 0), prompt))
        _add(losses, "not_kept", start, answer_end)
        start = answer_end
    if start < prompt:
        losses["new"] = prompt - start


def _missed(
    losses: dict[str, int],
    cached: int,
    reusable: int,
    estimates: IndexEstimates,
    last_turn: LastTurn | None,
    page: int,
) -> None:
    """Assign loss classes to [cached, reusable), which is longer than a page: it could have been reused and was not."""
    if reusable - cached <= _error(reusable, page):
        _within_error(losses, cached, reusable, last_turn)
        return
    start, seen = cached, estimates.seen
    if estimates.restarted > 0:
        start = _held_somewhere(losses, start, reusable, _expected(estimates, None), page)
        start = _held(losses, "evicted", start, min(estimates.restarted, reusable), page)
    if last_turn is not None and last_turn.same_region:
        # The previous turn has computed its prompt, even if another request is computing that text again now.
        computed = min(last_turn.prompt_tokens, reusable)
        start = _held_somewhere(losses, start, computed, _expected(estimates, last_turn), page)
    start = _held(losses, "not_computed_yet", start, min(seen.waiting, reusable), page)
    if start == cached and _is_misjudged(cached, reusable, estimates, last_turn):
        _within_error(losses, start, reusable, last_turn)
        return
    start = _held_somewhere(losses, start, reusable, _expected(estimates, last_turn), page)
    start = _held(losses, _gone(seen.evicted, seen.forgets), start, min(estimates.known, reusable), page)
    _add(losses, "unknown", start, reusable)


def _gone(evicted: bool, forgets: bool) -> str:
    """The loss class of tokens that a cache no longer has."""
    if evicted:
        return "evicted"
    return "forgotten" if forgets else "unknown"


def _is_misjudged(cached: int, reusable: int, estimates: IndexEstimates, last_turn: LastTurn | None) -> bool:
    """Whether the index overestimated the text that a new lineage shares, so that no cache lost any of it.

    The chosen worker was expected to hold all of that text, and holds its beginning. After an eviction, too, the end of
    a text is missing, but then the index or another cache knows more of the text than this worker.
    """
    if last_turn is not None or not cached or reusable - cached > RATIO_ERROR * reusable:
        return False
    most = max(estimates.known, estimates.moved, estimates.elsewhere)
    return most - max(estimates.here, 0) <= ESTIMATE_ERROR * most


def _within_error(losses: dict[str, int], start: int, reusable: int, last_turn: LastTurn | None) -> None:
    """Assign loss classes to what was missed, if this is at most the error of the estimates. Only the previous turn's
    prompt was certainly computed, at a known place.
    """
    if last_turn is None:
        _add(losses, "cold", start, reusable)
        return
    counted = min(max(start, last_turn.prompt_tokens), reusable)
    name = "unknown"
    if last_turn.repeated and not last_turn.same_worker:
        name = "moved" if last_turn.same_region else "elsewhere"
    _add(losses, name, start, counted)
    _add(losses, "new", counted, reusable)


def _held_somewhere(losses: dict[str, int], start: int, reusable: int, expected: IndexEstimates, page: int) -> int:
    """Assign loss classes to tokens that a cache was expected to hold. Returns where the tokens begin that no cache
    should hold."""
    seen = expected.seen
    start = _held(losses, _gone(seen.evicted_here, seen.forgets), start, min(expected.here, reusable), page)
    start = _held(losses, "moved", start, min(expected.moved, reusable), page)
    return _held(losses, "elsewhere", start, min(expected.elsewhere, reusable), page)


def _held(losses: dict[str, int], name: str, start: int, end: int, page: int) -> int:
    """Assign a class to [start, end), which a cache should hold, if it is longer than the error. Returns where the rest
    begins."""
    if end - start <= _error(end, page):
        return start
    _add(losses, name, start, end)
    return end


def _expected(estimates: IndexEstimates, last_turn: LastTurn | None) -> IndexEstimates:
    """What each place is expected to hold: what the index predicts, and what the previous turn computed there."""
    here, moved, elsewhere = max(estimates.here, 0), max(estimates.moved, 0), max(estimates.elsewhere, 0)
    if last_turn is not None:
        if last_turn.same_worker:
            here = max(here, last_turn.prompt_tokens)
        elif last_turn.same_region:
            moved = max(moved, last_turn.prompt_tokens)
    return IndexEstimates(estimates.known, here, moved, elsewhere, seen=estimates.seen)


def _error(tokens: int, page: int) -> float:
    return ESTIMATE_ERROR * tokens + page


def _add(losses: dict[str, int], name: str, start: int, end: int) -> None:
    if end > start:
        losses[name] = losses.get(name, 0) + end - start
