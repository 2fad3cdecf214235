"""What the turns since a start were: a line of sums, losses by class, and the turns whose prefix broke.

It is printed on the standard error, so that a program's output can be piped on.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from warmroute._explain import MEANINGS
from warmroute.contract.money import usd
from warmroute_cli.api import Api, ApiError
from warmroute_cli.usage import losses_text

BREAKS: Final = ("prefix_changed", "moved", "evicted", "salt_changed", "unknown")
"""Loss classes of tokens that could have been cached."""

MAX_LISTED: Final = 5
MAX_READ: Final = 50
MAX_ROWS: Final = "200"


def show(api: Api, since_s: float) -> None:
    """Print it; where the proxy does not answer, a sentence that says so."""
    try:
        lines = list(_lines(api, since_s))
    except ApiError as error:
        lines = [f"what the turns cost is not known: {error}"]
    with contextlib.suppress(OSError):  # the terminal may be gone
        print("\n".join(["", *lines]), file=sys.stderr, flush=True)


def _lines(api: Api, since_s: float) -> Iterator[str]:
    since = {"since": f"{since_s:.3f}"}
    sums = api.ask("/usage", {"by": "session", **since})
    if not sums["turns"]:
        yield "warmroute: no turn came to the proxy"
        return
    hit = sums["hit_ratio"]
    share = f" ({hit:.1%})" if hit is not None else ""
    sessions = len(sums["groups"]) + sums["groups_left_out"]
    yield (
        f"warmroute: {sums['turns']:,} turns in {sessions:,} session{'s'[: sessions != 1]}, "
        f"{sums['prompt_tokens']:,} prompt tokens, {sums['cached_tokens']:,} cached{share}, "
        f"{sums['completion_tokens']:,} of answers"
    )
    yield f"cost:      {usd(sums['price_nanousd'])} USD, {usd(sums['saved_nanousd'])} USD saved by the cache"
    losses = sums["losses"] or {}
    if losses:
        yield f"computed:  {losses_text(losses)}"
    lost = sum(losses.get(name, 0) for name in BREAKS)
    if not lost:
        yield "prefixes:  nothing broke them"
        return
    yield f"prefixes:  {lost:,} tokens were computed again"
    yield from _broken(api, since)
    if not sums["complete"]:
        yield "a region did not answer: its turns are missing"


def _broken(api: Api, since: Mapping[str, str]) -> Iterator[str]:
    """The turns that lost most."""
    rows = api.ask("/usage/receipts", {"limit": MAX_ROWS, **since})["data"]
    coldest = sorted(rows, key=lambda row: row["cached_tokens"] - row["prompt_tokens"])[:MAX_READ]
    receipts = [api.ask(f"/usage/receipts/{row['id']}")["usage"]["warmroute"] for row in coldest]
    found = [(receipt["loss"].get(name, 0), name, receipt) for receipt in receipts for name in BREAKS]
    worst = sorted((each for each in found if each[0]), key=lambda each: -each[0])
    for tokens, name, receipt in worst[:MAX_LISTED]:
        why = MEANINGS[name].partition(".")[0]
        yield f"  turn {receipt['turn']} of {receipt['session']}: {tokens:,} tokens ({name}) {why}; {receipt['id']}"
    if len(worst) > MAX_LISTED:
        yield f"  and {len(worst) - MAX_LISTED} more; `warmroute receipts show ID` explains a turn"
