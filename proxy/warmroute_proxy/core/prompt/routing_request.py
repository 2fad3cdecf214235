"""What placement knows about a request: numbers and names, never the text."""

import msgspec

from warmroute_proxy.core.prompt.chain import Chain


class RoutingRequest(msgspec.Struct, frozen=True, gc=False):
    """One request, as the server has parsed it.

    `lineage` (one conversation branch of the session) and `session`: 64-bit keys that are made under the tenant's key,
    so that keys of two tenants differ. `structural_bytes`: the bytes of the prompt (in canonical form) that the
    previous turn of an append-only conversation has already sent. `thread`: the key of the lineage without its system
    prompt; None without a session. If a client rewrites the system prompt of a running conversation, the thread still
    identifies the conversation. `parent`: the session that started this session. Without a home of its own, a session
    begins in its parent's home region, and the index finds the prefix that both sessions share. `expects`: how the turn
    will end, if the client says so (`cache.return_times`). `sequences`: how many answers an engine computes; each
    answer takes a slot. `tenant`: empty if there is only one tenant.
    """

    model: str
    lineage: int
    session: int | None
    derived: bool
    parent: int | None
    chain: Chain
    structural_bytes: int
    turn: int
    expected_output_tokens: int
    home_hint: str | None
    allowed_regions: frozenset[str] | None
    may_forward: bool
    salt_epoch: int = 0
    thread: int | None = None
    sequences: int = 1
    expects: int = 0
    tenant: str = ""
    turns_before: int = 0
    """How many earlier turns a compaction took out of the prompt, as far as known (`Settlement.numbered`)."""

    settings: int = 0
    """A digest of the request's settings that engines render into the prompt; 0 if it has none."""

    def stay(self) -> "RoutingRequest":
        """A copy of the request that must not be forwarded to another region."""
        return msgspec.structs.replace(self, may_forward=False)
