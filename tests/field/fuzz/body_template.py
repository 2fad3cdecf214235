"""Fuzz target: a body whose beginning and end are known, and what stands between them.

What must hold: whatever is known of a caller's bodies (the frame around their messages, a conversation that goes on), a
body is read, refused and sent on as if it were the first one. A difference is a body that passes by resembling another.
"""

import json
from pathlib import Path
from typing import Any

from warmroute.contract.conversations import Conversations
from warmroute_proxy.server.base.config_file import parse_config
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.caller import Caller, Callers
from warmroute_proxy.server.intake.intake import read
from warmroute_proxy.server.intake.known_body import KnownBodies, no_check
from warmroute_proxy.server.intake.large_body import LargeBody
from warmroute_proxy.server.intake.parsed_request import CHAT

CONFIG = parse_config(
    {
        "proxy": {"region": "here", "port": 0, "state_dir": "state"},
        "secret": {"file": "secret"},
        "region": [{"name": "here"}],
        "engine": [{"id": "e", "url": "http://127.0.0.1:1", "region": "here", "role": "aggregated", "kind": "sglang"}],
        "model": [{"name": "m", "aliases": ["alias"], "input": "1", "cached": "0.1", "output": "2"}],
        "tenant": [{"name": "t", "key_sha256": ["00" * 32]}],
    },
    Path(),
    "test",
)
TENANT = CONFIG.tenants[0]
SECRETS = Secrets(b"k" * 48)
LEAST = 100  # bytes of a conversation that is known
DROPS = [
    frozenset({"rid"}),
    frozenset({"stream_options", "rid"}),
    frozenset({"stream", "stream_options", "user"}),
    frozenset({"model", "messages"}),
]
LONG = "a long beginning " * 70  # and more than a tail that each frame has for itself


def caller(headers: dict[str, str]) -> Caller:
    return Callers(SECRETS, Conversations("x")).of(CHAT, TENANT, headers)


def outcome(raw: bytes, asks: Caller, kept: KnownBodies, under_way: Conversations | None = None) -> Any:
    """All that comes of a body; `under_way` are the conversations of bodies before it."""
    callers = Callers(SECRETS, Conversations("x") if under_way is None else under_way)
    callers.known_bodies = kept
    request = Request(0.0, "POST", CHAT)
    request.body = raw
    try:
        parsed, body = read(request, asks, callers, CONFIG, no_check)
    except Refusal as refusal:
        return refusal.status, refusal.code, refusal.message, refusal.param
    sent = [b"".join(body.rewritten(drop, b'"rid":"x"')) for drop in DROPS]
    pairs = [json.loads(each.decode("latin-1"), object_pairs_hook=lambda found: found) for each in sent]
    assert not isinstance(body, LargeBody)
    members = {name: bytes(value) for name, value in body.members.items()}
    said = {name: getattr(parsed, name) for name in parsed.__struct_fields__}
    said["conversation"] = parsed.conversation and parsed.conversation.newest
    return said, members, pairs


def check_all(bodies: list[bytes], headers: dict[str, str]) -> None:
    """One caller sends them all; and for each there is one that sends nothing else."""
    kept = KnownBodies(min_bytes=LEAST)
    warm, conversations, others = caller(headers), Conversations("x"), Conversations("x")
    for raw in bodies:
        fresh = outcome(raw, caller(headers), KnownBodies(min_bytes=LEAST), others)
        assert outcome(raw, warm, kept, conversations) == fresh, raw


HEAD = b'{"model":"m","messages":'
SAID = b'[{"role":"user","content":"%b"},{"role":"assistant","content":"y"}' % LONG.encode()
TAIL = b',"stream":true,"stream_options":{"include_usage":true},"user":"u"}'


def check(data: bytes) -> None:
    """Raise `AssertionError` where what is known of a body changes what comes of `data` in it."""
    known = HEAD + SAID + b"]" + TAIL
    check_all([known, known, known, data, HEAD + data + TAIL, HEAD + SAID + data + TAIL, known], {})
