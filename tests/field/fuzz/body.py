"""Fuzz target: what the proxy reads from any request body, and what it makes of it for an engine.

What must hold, against Python's own JSON as the second reader:
- a body is refused with a 400, or it is one object in which no name stands twice, however it is written;
- what an engine is sent is an object of the same members, without those that were dropped, with those that were added.
"""

import json
from typing import Any

from warmroute.contract.steering import REMOVED_FIELDS
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.intake.body import Body

ADDED = {"rid": "0123", "stream_options": {"include_usage": True}}
ADD = json.dumps(ADDED)[1:-1].encode()
DROPPED = REMOVED_FIELDS | {"stream_options", "model"}


def _distinct(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return pairs


def check(data: bytes) -> None:
    """Raise `AssertionError` where a body is read otherwise than an engine would."""
    try:
        body = Body(data)
    except Refusal as refusal:
        assert refusal.status == 400
        return
    try:
        pairs = json.loads(data.decode(), object_pairs_hook=_distinct)
    except (ValueError, RecursionError):  # more than msgspec looks at without decoding: UTF-8 and numbers of values
        return
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), data
    assert list(body.names) == names
    for add, added in ((ADD, ADDED), (b"", {})):
        sent = b"".join(bytes(part) for part in body.rewritten(DROPPED, add))
        kept = {name: value for name, value in pairs if name not in DROPPED}
        assert dict(json.loads(sent, object_pairs_hook=_distinct)) == {**kept, **_pairs(added)}, (data, sent)
    sent = b"".join(bytes(part) for part in body.rewritten(frozenset(), b'"at the end":1'))
    assert json.loads(sent, object_pairs_hook=_distinct) == [*pairs, ("at the end", 1)], (data, sent)


def _pairs(value: Any) -> Any:
    return dict(json.loads(json.dumps(value), object_pairs_hook=_distinct))
