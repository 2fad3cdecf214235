"""The meaning of each loss class (why prompt tokens were not cached), and what to do about it.

Each text completes a sentence that begins with "N prompt tokens".
"""

from typing import Final

MEANINGS: Final = {
    "new": "came with this turn and could not be cached before. Nothing to do.",
    "cold": "were never sent before with this beginning of the prompt. Expected on a session's first turn; a prefix "
    "shared by sessions (tools, system prompt) stays warm when it stands first and is equal in all of them.",
    "prefix_changed": "follow a place where the client rewrote its history. Append instead: keep tools, system "
    "prompt and history as they were.",
    "moved": "are cached on another worker: the worker that served the turn was faster or cheaper, or the call came "
    "without its session. Keep one session key per conversation; `warmroute receipts show` has the costs.",
    "elsewhere": "are cached in another region: that region could not be reached, or the region that served the turn "
    "was faster or cheaper. Nothing to do, unless it happens often.",
    "not_computed_yet": "stand in a prompt that was sent shortly before and was still being computed: turns with the "
    "same beginning that are sent together all compute that beginning. Send one of them a moment before the others.",
    "evicted": "were cached and had to make room. Shorter pauses between turns, or more cache on the server, help.",
    "forgotten": "were computed before by a server that reports no evictions, and it no longer has them: such servers "
    "decide alone how long they keep a prompt, often minutes. Shorter pauses between turns help.",
    "salt_changed": "are cached under an older cache salt, which the operator has changed. The loss ends with the next "
    "turns.",
    "page_rounding": "are the rest of a page: engines reuse whole pages, and never a prompt's last token. "
    "Nothing to do.",
    "not_kept": "are the previous answer, whose KV stayed on the engine that decoded it. Nothing to do.",
    "engine_misreport": "are uncertain: the engine's own count was impossible. Tell the operator of the server.",
    "unknown": "have no known reason.",
}
"""The meaning of each loss class, and what to do."""

RESTARTED: Final = "were cached by an engine that has restarted or left since. Nothing to do on your side."
"""The meaning of the loss class `evicted` if the receipt names a restart as the cause."""

UNKNOWN_CLASS: Final = "have a reason that this version of warmroute does not know."

_SINGULAR: Final = {"are": "is", "were": "was", "have": "has", "follow": "follows", "stand": "stands"}


def meaning(name: str, tokens: int) -> str:
    """The meaning of a loss class, with the verb in the singular for one token."""
    text = MEANINGS.get(name, UNKNOWN_CLASS)
    verb, _, rest = text.partition(" ")
    return f"{_SINGULAR.get(verb, verb)} {rest}" if tokens == 1 else text
