"""What proxies send each other, with fixed contents: the tokens and announcements of which golden files keep the bytes.

`python -m tests.subjects.proxy_messages` prints those of this version.
"""

import hashlib
import json
from typing import Final

import msgspec

from warmroute.contract.changes import Changes
from warmroute.contract.conversations import Newest
from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.core.placement.waits import Waits
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.replicas.event_stream import Events
from warmroute_proxy.core.replicas.peer_events import Computed, Event, Evicted, Lost, Sent, Served, SessionObserved
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.processes.peer_processes import Continued
from warmroute_proxy.server.regions.announcements import Announcement
from warmroute_proxy.server.regions.forward_claim import Forwards, Noted
from warmroute_proxy.server.regions.versions import ANNOUNCEMENTS, NEWEST, WAITS_SINCE

TENANTS_SINCE: Final = 3
"""Settled turns name theirs."""

NUMBERS_SINCE: Final = 4
"""Settled turns go on behind a compaction."""

SECRETS: Final = Secrets(b"0123456789abcdef0123456789abcdef")
SIGNED_AT_S: Final = 1000.0
BODY_SHA256: Final = hashlib.sha256(b"{}").hexdigest()
CHANGES: Final = Changes(("best_of",), {"thinking": 2}, 3, ("dates",), ("ids",))

_TURN: Final = SettledTurn(("a0",), "east", 4096, 1024, 32, 960, 3, 1, 1 << 60)
_EVENTS: Final[list[Event]] = [
    Sent(1, "east-p0", "east-d0", Chain([5, 6, 7], [10, 20, 30]), True, 1, 1024, 960, 1, 77, 10, "first"),
    Computed(1),
    Served(1, 77, 99, 88, "kimi-k2.5", _TURN, 32, 2),
    Lost(2, ["east-p0"]),
    Evicted(77, "east-p0", [6, 7]),
    SessionObserved(99, 1),
    Waits("kimi-k2.5", "first", 2, 90_000),
]


def announcements(version: int = NEWEST) -> list[Announcement]:
    """One of each kind, as a proxy of a version means it."""
    events = [event for event in _EVENTS if version >= WAITS_SINCE or not isinstance(event, Waits)]
    if version < WAITS_SINCE:
        events = [msgspec.structs.replace(each, tenant="") if isinstance(each, Sent) else each for each in events]
    turn = msgspec.structs.replace(_TURN, workers=())
    compacted = msgspec.structs.replace(turn, prompt_tokens=None, turns_before=9 if version >= NUMBERS_SINCE else 0)
    return [
        RegionalTurn(77, 99, 88, 12, 1 << 59, turn, [5, 6], "first" if version >= TENANTS_SINCE else ""),
        RegionalTurn(78, None, None, 12, 0, compacted),
        Continued(Newest("d-0-1", "first", 1 << 61, 9, b"what next?")),
        Events(4711, 1, events),
    ]


def forwards(region: str = "east", at_s: float = SIGNED_AT_S) -> Forwards:
    """What signs and checks tokens in a region. The proxies of west are known to read the newest version."""
    made = Forwards(SECRETS, region, lambda: at_s, lambda size: "ab" * size)
    made.versions.found("west", NEWEST, at_s)
    return made


def tokens() -> dict[str, str]:
    """A token of each kind, to west."""
    signs = forwards()
    noted = Noted("/v1/messages", CHANGES, "key-1")
    return {
        "request": signs.sign("first", "first", "wr-1", "west", BODY_SHA256, 60.0),
        "translated": signs.sign("first", "shared", "wr-2", "west", BODY_SHA256, 60.0, noted),
        "announcements": signs.sign("", "", ANNOUNCEMENTS, "west", BODY_SHA256, 2.0),
    }


if __name__ == "__main__":
    print(json.dumps({"tokens": tokens(), "announcements": msgspec.msgpack.encode(announcements()).hex()}, indent=1))
