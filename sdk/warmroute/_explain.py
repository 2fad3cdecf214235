"""Why a turn was not warmer, in sentences."""

from typing import Final

from warmroute._turns import Turn

MEANINGS: Final = {
    "new": "came with this turn and could not be cached before. Nothing to do.",
    "cold": "were seen for the first time behind this beginning. Expected on a session's first turn; a prefix shared "
    "by sessions (tools, system prompt) stays warm when it stands first and is equal in all of them.",
    "prefix_changed": "follow a place where your side rewrote what it had sent. Append instead: keep tools, system "
    "prompt and history as they were.",
    "moved": "are cached on another worker than the one that served the turn: that was faster or cheaper, or the call "
    "came without its session. Keep one session key per conversation; `warmroute receipts show` has the costs.",
    "elsewhere": "are cached in another region than the one that served the turn: that one could not be reached, or "
    "this one was faster or cheaper. Nothing to do, unless it happens often.",
    "evicted": "were cached and had to make room. Shorter pauses between turns, or more cache on the server, help.",
    "salt_changed": "are cached under the key of another salt epoch. It passes with the next turns.",
    "page_rounding": "are the rest of a page: engines reuse whole pages, and never a prompt's last token. "
    "Nothing to do.",
    "not_kept": "are the answer before this turn, which lives where it was decoded. Nothing to do.",
    "engine_misreport": "are uncertain: the engine's own count was impossible. Tell the operator of the server.",
    "unknown": "have no known reason.",
}
"""What each loss class means and what to do about it, after "N prompt tokens"."""

RESTARTED: Final = "were cached by an engine that has restarted or left since. Nothing to do on your side."
"""What `evicted` means where the receipt says that a restart was the cause."""

UNKNOWN_CLASS: Final = "have a reason that this version of warmroute does not know."


def explain(turn: Turn | None, name: str | None) -> str:
    """The text of `client.cache.explain()`; `name` is the session that was asked for, if any."""
    if turn is None:
        return "No turn was seen yet." if name is None else f"No turn of session {name} was seen."
    lines = [_headline(turn), *_losses(turn)]
    if turn.checked is not None:
        lines += [f"Repaired: {event}" for event in turn.checked.repairs]
        if turn.checked.event is not None:
            lines.append(f"On your side: {turn.checked.event}")
        elif turn.checked.continues:
            lines.append("On your side nothing broke the prefix: the prompt only grew since the turn before.")
    if turn.miss is not None:
        lines.append(f"Not on your side: {turn.miss}")
    return "\n".join(lines)


def _headline(turn: Turn) -> str:
    measured = turn.measured
    of = "The last turn" if turn.session is None else f"The last turn of session {turn.session}"
    if measured is None:
        later = f"; its receipt is {turn.receipt_id}" if turn.receipt_id else ""
        return f"{of}: its usage was not seen, because the answer had none or was not read to its end{later}."
    if measured.cached_tokens is None:
        return f"{of}: {measured.prompt_tokens:,} prompt tokens; the server does not say how many were cached."
    share = measured.cached_tokens / measured.prompt_tokens if measured.prompt_tokens else 0.0
    counts = f"{measured.cached_tokens:,} of {measured.prompt_tokens:,} prompt tokens were cached ({share:.1%})"
    return f"{of}: {counts}{f', in region {measured.region}' if measured.region else ''}."


def _losses(turn: Turn) -> list[str]:
    losses = turn.measured.losses if turn.measured is not None else {}
    order = sorted(losses.items(), key=lambda item: -item[1])
    return [f"{tokens:,} prompt tokens ({name}) {MEANINGS.get(name, UNKNOWN_CLASS)}" for name, tokens in order]
