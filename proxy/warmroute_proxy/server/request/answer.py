"""A whole answer of an engine: its usage, and the answer with the settled usage in the place of its own.

Servers write answers without a space between members, and `usage` behind the long ones. So one decode looks at all of
an answer and makes objects of two members only, and their place is found from the right: `,"usage":{` cannot stand
inside a JSON string, so in valid JSON it is a member. It is the answer's own where what follows its value is, with a
brace in front, an object too. Whatever is written in another way (spaces, `usage` in front, one more of that name
before it, `sglext` elsewhere than at the end) is read as requests are (`body`).

Limits: `MAX_ENDS` ends of answers are kept, of at most `MAX_END_BYTES` each; all are dropped when it is full.
"""

from typing import Final

import msgspec

from warmroute_proxy.core.accounting.usage_fields import Accounts
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.intake.body import Body

MAX_ENDS: Final = 64
MAX_END_BYTES: Final = 512

_USAGE: Final = b',"usage":'
_ESCAPE: Final = b"\\"
_ESCAPED_LETTER: Final = b"\\u00"  # as in a name that is `usage` to whoever parses it, and not to whoever looks for it
_OWN: Final = frozenset({"usage"})
_OWN_ACCOUNTS: Final = frozenset({"usage", "sglext"})
_ENDS: Final[dict[bytes, bytes]] = {}
_NEITHER: Final = Accounts()
_accounts: Final = msgspec.json.Decoder(Accounts).decode


class Answer:
    """One answer. `usage` and `sglext` are JSON, empty where the engine wrote none."""

    __slots__ = ("_at", "_between", "_body", "_raw", "sglext", "usage")

    def __init__(self, raw: bytes) -> None:
        """`Refusal`: it is not one JSON object."""
        self._raw = raw
        self._body: Body | None = None
        try:
            accounts = _accounts(raw)
        except (msgspec.DecodeError, RecursionError):
            accounts = _NEITHER
        self.usage = bytes(accounts.usage)
        self.sglext = bytes(accounts.sglext)
        self._at = raw.rfind(_USAGE)
        between = _between(raw, self._at, self.usage, self.sglext)
        if between is not None:
            self._between = between
        else:
            self._read()

    def _read(self) -> None:
        body = self._body = Body(self._raw)
        self.usage = bytes(body.members.get("usage", b""))
        self.sglext = bytes(body.members.get("sglext", b""))

    def settled(self, usage: bytes | msgspec.Raw, *, keep_sglext: bool) -> bytes:
        """The answer with `usage` as its last member, and without the engine's `usage` and, unless kept, `sglext`."""
        if self._body is not None:
            drop = _OWN if keep_sglext else _OWN_ACCOUNTS
            return b"".join(self._body.rewritten(drop, b'"usage":%b' % usage))
        between = self._between
        if keep_sglext and self.sglext:
            between = b'%b"sglext":%b,' % (between, self.sglext)
        return b"".join((memoryview(self._raw)[: self._at + 1], between, b'"usage":', usage, b"}"))


def _between(raw: bytes, at: int, usage: bytes, extension: bytes) -> bytes | None:
    """What stands behind `usage` at `at`, without `sglext`, each member with a comma; None where that is not plain."""
    behind = at + len(_USAGE)
    if at < 0 or not usage.startswith(b"{") or not raw.startswith(usage, behind):
        return None
    if raw.rfind(b'"usage"', 0, at) >= 0:
        return None
    if raw.find(_ESCAPE, 0, at) >= 0 and raw.rfind(_ESCAPED_LETTER, 0, at) >= 0:  # one byte is found much faster
        return None
    end = raw[behind + len(usage) :]
    if extension:
        last = b',"sglext":%b}' % extension
        if not end.endswith(last) or raw.rfind(b'"sglext"', 0, at) >= 0:
            return None
        end = end[: -len(last)] + b"}"
    between = _ENDS.get(end)
    return between if between is not None else _learn(end)


def _learn(end: bytes) -> bytes | None:
    """The members in the end of an answer that begins behind the value of a member; None where it is no such end."""
    if end == b"}":
        return b""
    if end[:1] != b",":
        return None
    try:
        members = Body(b"{" + end[1:]).members
    except Refusal:
        return None
    as_usual = b",".join([b'"%b":%b' % (name.encode(), value) for name, value in members.items()])
    if end[1:-1] != as_usual or not _OWN_ACCOUNTS.isdisjoint(members):
        return None
    between = as_usual + b","
    if len(end) <= MAX_END_BYTES:
        if len(_ENDS) >= MAX_ENDS:
            _ENDS.clear()
        _ENDS[end] = between
    return between
