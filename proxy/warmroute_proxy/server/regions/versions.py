"""The versions of what proxies send each other: forward tokens and announcements.

A token names the version of its sender (`Forward.v`), and each post of announcements has a token. A proxy reads all
versions from `OLDEST` to `NEWEST`, and `/ready` says so, with none where its version is 0. So a proxy knows by its
first probe of a region whether the two can understand each other, and sends no request there before.

Who adds a field that older proxies may ignore makes a new version too, so that a golden file of each is kept
(`tests/unit/server/test_versions.py`). Where they may not ignore it, `NEWEST` is raised in one release, which reads
both and writes the older one to those that know no other; `OLDEST` is raised in a later one.

    0   tokens without a version
    1   `v`, and `rtt_ms` in tokens of requests
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

OLDEST: Final = 0
NEWEST: Final = 1


class Spoken(NamedTuple):
    """The versions that a proxy reads."""

    oldest: int
    newest: int

    def common(self) -> int | None:
        """The newest version that both read; None where there is none."""
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


def misunderstood(region: str, there: Spoken) -> str:
    """What to do about a region that speaks no version that this proxy does."""
    behind = "that region" if there.newest < OLDEST else "this one"
    return (
        f"region {region} reads versions {there.oldest} to {there.newest} of what proxies send each other, this proxy"
        f" {OLDEST} to {NEWEST}: nothing is forwarded there; update {behind}"
    )
