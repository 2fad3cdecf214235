"""The versions of the messages between proxies: forward tokens and announcements.

A token names its version (`Forward.v`), and each POST of announcements has a token. A proxy reads all versions from
`OLDEST` to `NEWEST`, and its `/ready` names these two; proxies of version 0 do not name them. So the first probe of a
region shows whether the two proxies have a common version, and no request is sent there before.

Each new field makes a new version, even if older proxies may ignore the field, so that there is a golden file for each
version (`tests/unit/server/test_versions.py`). If older proxies may not ignore the field, one release raises `NEWEST`:
it reads the old and the new version, and writes the old one to proxies that read only that. A later release raises
`OLDEST`.

    0   tokens without a version
    1   `v`, and `rtt_ms` in tokens of requests
    2   the tenant of a request that was sent, and `Waits` (requests that wait for memory; not sent to older versions)
    3   the tenant of a settled turn of another region
    4   the number of turns that a compaction took out of a settled turn's prompt; 0 if absent
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

ANNOUNCEMENTS: Final = "/v1/regions/announcements"
MAX_ANNOUNCED_BYTES: Final = 1_048_576
"""The maximum size of one POST of announcements."""

OLDEST: Final = 0
NEWEST: Final = 4
WAITS_SINCE: Final = 2
MIXED_S: Final = 30.0
"""For how long a version is used after a region's proxy has named it."""


class Spoken(NamedTuple):
    """The versions that a proxy reads."""

    oldest: int
    newest: int

    def common(self) -> int | None:
        """The newest of these versions that this proxy also reads; None if there is no common version."""
        newest = min(self.newest, NEWEST)
        return newest if newest >= max(self.oldest, OLDEST) else None


HERE: Final = Spoken(OLDEST, NEWEST)
UNSAID: Final = Spoken(0, 0)
"""The versions of a proxy whose `/ready` does not name any."""


def spoken_by(ready: Mapping[str, Any]) -> Spoken:
    """The versions that a proxy reads, as its `/ready` says."""
    found = ready.get("forward_versions")
    if isinstance(found, list) and len(found) == 2 and all(isinstance(each, int) for each in found):
        return Spoken(*found)
    return UNSAID


class Versions:
    """The version to write to each region: the oldest version that its proxies named within `MIXED_S`.

    During an update, a region's load balancer has proxies of two releases, and each probe reaches one of them.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[int, float]] = {}  # when each version was named last, by region and version

    def found(self, region: str, version: int, now_s: float) -> None:
        """Note that `version` is the newest common version with a proxy of that region."""
        named = self._found.setdefault(region, {})
        named[version] = now_s
        for old in [each for each, at_s in named.items() if now_s - at_s > MIXED_S]:
            del named[old]

    def of(self, region: str) -> int:
        """The version to write to a region; `OLDEST` if its proxies have not named one."""
        return min(self._found.get(region, {}), default=OLDEST)


def stranger(region: str, status: int, ready: Mapping[str, Any]) -> str:
    """The text for the log if a server that is not a proxy of the region has answered."""
    named = ready.get("region")
    who = f"the proxy of region {named[:64]!r}" if isinstance(named, str) else "no proxy of Warmroute"
    at = f"answers at the url of region {region!r} (status {status})"
    return f"{who} {at}: nothing is forwarded there; correct its [[region]] url"


def misunderstood(region: str, there: Spoken) -> str:
    """The text for the log if a region has no version in common with this proxy."""
    behind = "that region" if there.newest < OLDEST else "this one"
    return (
        f"region {region} reads versions {there.oldest} to {there.newest} of the protocol between proxies, this proxy"
        f" {OLDEST} to {NEWEST}: nothing is forwarded there; update {behind}"
    )
