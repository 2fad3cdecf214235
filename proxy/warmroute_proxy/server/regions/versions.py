"""The versions of the messages between proxies: forward tokens and announcements.

A token names its version (`Forward.v`), and each post of announcements has a token. A proxy reads all versions from
`OLDEST` to `NEWEST`, and its `/ready` names the two; proxies of version 0 name none. So the first probe of a region
tells whether the two proxies have a common version, and no request is sent there before.

Each new field makes a new version, even if older proxies may ignore it, so that a golden file of each version is kept
(`tests/unit/server/test_versions.py`). If older proxies may not ignore the field, one release raises `NEWEST`: it reads
both versions, and writes the older one to proxies that read no other. A later release raises `OLDEST`.

    0   tokens without a version
    1   `v`, and `rtt_ms` in tokens of requests
    2   the tenant of a request that was sent, and `Waits` (requests that wait for memory), not sent to older versions
    3   the tenant of a settled turn of another region
    4   the turns that a compaction took out of a settled turn's prompt; if absent, it took out none
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

ANNOUNCEMENTS: Final = "/v1/regions/announcements"
MAX_ANNOUNCED_BYTES: Final = 1_048_576
"""The most bytes of one post of announcements."""

OLDEST: Final = 0
NEWEST: Final = 4
WAITS_SINCE: Final = 2
MIXED_S: Final = 30.0
"""How long a version counts after a region's proxy has named it."""


class Spoken(NamedTuple):
    """The versions that a proxy reads."""

    oldest: int
    newest: int

    def common(self) -> int | None:
        """The newest version that this proxy reads, too; None if the two have no version in common."""
        newest = min(self.newest, NEWEST)
        return newest if newest >= max(self.oldest, OLDEST) else None


HERE: Final = Spoken(OLDEST, NEWEST)
UNSAID: Final = Spoken(0, 0)
"""The versions of a proxy whose `/ready` names none."""


def spoken_by(ready: Mapping[str, Any]) -> Spoken:
    """The versions that a proxy's `/ready` names."""
    found = ready.get("forward_versions")
    if isinstance(found, list) and len(found) == 2 and all(isinstance(each, int) for each in found):
        return Spoken(*found)
    return UNSAID


class Versions:
    """The version to write to each region: the oldest that its proxies named within `MIXED_S`.

    A region's load balancer may serve proxies of two releases, and each probe reaches one of them.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[int, float]] = {}  # by region and version: when it was named last

    def found(self, region: str, version: int, now_s: float) -> None:
        """Note that `version` is the newest common version with a proxy of that region."""
        named = self._found.setdefault(region, {})
        named[version] = now_s
        for old in [each for each, at_s in named.items() if now_s - at_s > MIXED_S]:
            del named[old]

    def of(self, region: str) -> int:
        """The version to write to a region; `OLDEST` if none was named."""
        return min(self._found.get(region, {}), default=OLDEST)


def stranger(region: str, ready: Mapping[str, Any]) -> str:
    """The log's text on an answer from a server that is not the region's proxy."""
    named = ready.get("region")
    who = f"the proxy of region {named[:64]!r} answers" if isinstance(named, str) else "no proxy of Warmroute answers"
    return f"{who} at the url of region {region!r}: nothing is forwarded there; correct its [[region]] url"


def misunderstood(region: str, there: Spoken) -> str:
    """The log's text on a region that has no version in common with this proxy."""
    behind = "that region" if there.newest < OLDEST else "this one"
    return (
        f"region {region} reads versions {there.oldest} to {there.newest} of the protocol between proxies, this proxy"
        f" {OLDEST} to {NEWEST}: nothing is forwarded there; update {behind}"
    )
