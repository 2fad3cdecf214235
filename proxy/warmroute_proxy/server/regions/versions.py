"""The versions of what proxies send each other: forward tokens and announcements.

A token names the version of its sender (`Forward.v`), and each post of announcements has a token. A proxy reads all
versions from `OLDEST` to `NEWEST`, and `/ready` says so, with none if its version is 0. So a proxy knows by its
first probe of a region whether the two can understand each other, and sends no request there before.

Who adds a field that older proxies may ignore makes a new version too, so that a golden file of each is kept
(`tests/unit/server/test_versions.py`). Where they may not ignore it, `NEWEST` is raised in one release, which reads
both and writes the older one to those that know no other; `OLDEST` is raised in a later one.

    0   tokens without a version
    1   `v`, and `rtt_ms` in tokens of requests
    2   the tenant of a request that was sent, and what waits for memory (`Waits`), which older ones are not sent
    3   the tenant of a settled turn of another region
    4   the turns that a compaction took out of a settled turn's prompt; absent, there are none
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

ANNOUNCEMENTS: Final = "/v1/regions/announcements"
MAX_ANNOUNCED_BYTES: Final = 1_048_576
"""Of one post of announcements."""

OLDEST: Final = 0
NEWEST: Final = 4
WAITS_SINCE: Final = 2
MIXED_S: Final = 30.0
"""So long the oldest version that a region has named counts."""


class Spoken(NamedTuple):
    """The versions that a proxy reads."""

    oldest: int
    newest: int

    def common(self) -> int | None:
        """The newest version that both read; None if there is none."""
        newest = min(self.newest, NEWEST)
        return newest if newest >= max(self.oldest, OLDEST) else None


HERE: Final = Spoken(OLDEST, NEWEST)
UNSAID: Final = Spoken(0, 0)
"""Of a proxy whose `/ready` says nothing of it."""


def spoken_by(ready: Mapping[str, Any]) -> Spoken:
    """The versions that a proxy's `/ready` names."""
    found = ready.get("forward_versions")
    if isinstance(found, list) and len(found) == 2 and all(isinstance(each, int) for each in found):
        return Spoken(*found)
    return UNSAID


class Versions:
    """The version to write to each region: the oldest of those that its proxies named within `MIXED_S`. A balancer may
    stand before proxies of two releases, of which each probe meets one.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[int, float]] = {}  # by region and version, when it was named last

    def found(self, region: str, version: int, now_s: float) -> None:
        """A proxy of that region reads a version, and none newer."""
        named = self._found.setdefault(region, {})
        named[version] = now_s
        for old in [each for each, at_s in named.items() if now_s - at_s > MIXED_S]:
            del named[old]

    def of(self, region: str) -> int:
        """The version to write to a region; the oldest if nothing is known of it."""
        return min(self._found.get(region, {}), default=OLDEST)


def stranger(region: str, ready: Mapping[str, Any]) -> str:
    """What to do about an answer that is not of a region's proxy."""
    named = ready.get("region")
    who = f"the proxy of region {named[:64]!r} answers" if isinstance(named, str) else "no proxy of Warmroute answers"
    return f"{who} at the url of region {region!r}: nothing is forwarded there; correct its [[region]] url"


def misunderstood(region: str, there: Spoken) -> str:
    """What to do about a region that speaks no version that this proxy does."""
    behind = "that region" if there.newest < OLDEST else "this one"
    return (
        f"region {region} reads versions {there.oldest} to {there.newest} of the protocol between proxies, this proxy"
        f" {OLDEST} to {NEWEST}: nothing is forwarded there; update {behind}"
    )
