"""What would win lost tokens back, by the cause of the loss. Bounds, not promises: two remedies may win the same.

A prediction that was wrong loses no tokens by itself: the engine found what it found. So no remedy is for it.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple


class Remedy(NamedTuple):
    """Something that an operator or a client can do. `causes`: of the losses that it can win back."""

    name: str
    causes: tuple[str, ...]
    how: str


REMEDIES: Final = (
    Remedy("affinity", ("moved", "elsewhere"), "send a session key, and let turns return to their home"),
    Remedy("second replica", ("moved",), "warm hot prompts on a second worker before it is needed"),
    Remedy("warm-up", ("cold",), "warm prompts that sessions share before the first one comes"),
    Remedy("working set", ("evicted",), "admit fewer sessions at once: `[limits] working_set`"),
    Remedy("host tier", ("evicted", "not_kept"), "give engines a host tier (HiCache), or a cache at the decode side"),
    Remedy("repair of a prefix", ("prefix_changed",), "`warmroute lint`, the SDK's guard, or `normalise` rules"),
    Remedy("usage reports", ("not_reported", "estimated", "engine_misreport"), "start engines with cache reports on"),
    Remedy("smaller pages", ("page_rounding",), "a smaller page size of the engine"),
    Remedy("one salt", ("salt_changed",), "change a tenant's salt epoch less often"),
)  # fmt: skip


class Win(NamedTuple):
    """What a remedy can win at most."""

    remedy: Remedy
    tokens: int
    nanousd: int


def wins(lost: Mapping[str, tuple[int, int]]) -> list[Win]:
    """The remedies of what was lost, the dearest first. `lost`: cause -> tokens and nanodollars."""
    found: Iterable[Win] = (
        Win(each, sum(max(0, lost[name][0]) for name in named), sum(max(0, lost[name][1]) for name in named))
        for each in REMEDIES
        for named in [[name for name in each.causes if name in lost]]
    )
    return sorted(
        (win for win in found if win.tokens > 0), key=lambda win: (-win.nanousd, -win.tokens, win.remedy.name)
    )
