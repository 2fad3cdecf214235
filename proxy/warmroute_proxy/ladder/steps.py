"""The steps of the ladder, from the whole prompt to the tokens billed as cached; the causes of losses, and remedies.

    prompt      all prompt tokens
    reachable   tokens that were computed before: the upper bound of what any placement can find in a cache
    kept        reachable tokens that some cache of the fleet still held
    predicted   cached tokens that the proxy expected on the best worker
    chosen      cached tokens that the proxy expected on the worker that it chose
    delivered   cached tokens that the engine found
    reported    cached tokens in the engine's answer
    billed      tokens that were charged as cached

A loss between two steps is listed at the lower step. A step has more tokens than the step before it only if a cause has
a negative loss. For example, a prediction that was too high raises `predicted` above `kept`, and the
surplus is lost again at `delivered`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

PROMPT: Final = "prompt"
STEPS: Final = ("reachable", "kept", "predicted", "chosen", "delivered", "reported", "billed")
"""The steps below the prompt, from the top."""

CAUSES: Final[Mapping[str, tuple[str, ...]]] = {
    "reachable": ("new", "cold", "prefix_changed", "salt_changed", "page_rounding", "engine_misreport"),
    "kept": ("not_computed_yet", "evicted", "forgotten", "not_kept"),
    "predicted": ("underpredicted", "overpredicted"),
    "chosen": ("moved", "elsewhere"),
    "delivered": ("overpredicted", "underpredicted", "unknown"),
    "reported": ("not_reported",),
    "billed": ("not_charged", "estimated", "credit", "voided"),
}
"""Step -> the causes of its losses. Any step may also have `UNEXPLAINED`, if the source does not name the cause."""

UNEXPLAINED: Final = "unexplained"

MEANINGS: Final[Mapping[str, str]] = {
    "new": "appended in this turn",
    "cold": "never computed before",
    "prefix_changed": "the client rewrote its history",
    "salt_changed": "cached under another salt",
    "page_rounding": "engines reuse whole pages, and never the last token",
    "engine_misreport": "the engine's count was out of range",
    "not_computed_yet": "sent at the same time, and still being computed",
    "evicted": "no cache held it any more",
    "forgotten": "a server that reports no evictions had it no more",
    "not_kept": "the last answer's KV stayed with the decode engine",
    "underpredicted": "cached, and the proxy did not expect it",
    "overpredicted": "expected, and not cached",
    "moved": "cached on another worker than the one chosen",
    "elsewhere": "cached in another region than the one chosen",
    "unknown": "no class; mostly errors of estimates",
    "not_reported": "the engine's answer did not say it",
    "not_charged": "the turn was charged nothing",
    "estimated": "charged as cached without a report",
    "credit": "given back for moved turns",
    "voided": "rows of answers that were lost between regions",
    UNEXPLAINED: "this source does not say why",
}


class Remedy(NamedTuple):
    """Something that an operator or a client can do. `causes`: the causes whose losses it can win back.

    A wrong prediction alone does not lose tokens, so it has no remedy.
    """

    name: str
    causes: tuple[str, ...]
    how: str


REMEDIES: Final = (
    Remedy("affinity", ("moved", "elsewhere"), "send a session key, and let turns return to their home"),
    Remedy("second replica", ("moved",), "warm hot prompts on a second worker before it is needed"),
    Remedy("warm-up", ("cold",), "warm prompts that sessions share before the first one comes"),
    Remedy("a head start", ("not_computed_yet",), "send the first of several equal beginnings a moment earlier"),
    Remedy("keep-alive", ("forgotten",), "shorter pauses, or keep-alive turns: the SDK's `keep_warm`"),
    Remedy("working set", ("evicted",), "admit fewer sessions at once: a longer `[limits] working_set_wait_s`"),
    Remedy("host tier", ("evicted", "not_kept"), "give engines a host tier (HiCache), or a cache at the decode side"),
    Remedy("repair of a prefix", ("prefix_changed",), "`warmroute lint`, the SDK's guard, or `normalise` rules"),
    Remedy("usage reports", ("not_reported", "estimated", "engine_misreport"), "start engines with cache reports on"),
    Remedy("smaller pages", ("page_rounding",), "a smaller page size of the engine"),
    Remedy("one salt", ("salt_changed",), "change a tenant's salt epoch less often"),
)  # fmt: skip


class Win(NamedTuple):
    """The upper bound of what a remedy can win back."""

    remedy: Remedy
    tokens: int
    nanousd: int


def wins(lost: Mapping[str, tuple[int, int]]) -> list[Win]:
    """The remedies of the losses, the one that can win back the most money first. `lost`: cause -> tokens, nanodollars.

    The wins are upper bounds, and do not add up: two remedies may win back the same tokens.
    """
    found: Iterable[Win] = (
        Win(each, sum(max(0, lost[name][0]) for name in named), sum(max(0, lost[name][1]) for name in named))
        for each in REMEDIES
        for named in [[name for name in each.causes if name in lost]]
    )
    return sorted(
        (win for win in found if win.tokens > 0), key=lambda win: (-win.nanousd, -win.tokens, win.remedy.name)
    )
