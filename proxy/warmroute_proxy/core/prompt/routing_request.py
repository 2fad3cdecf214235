"""What placement knows of a request: numbers and names, never the text."""

import msgspec

from warmroute_proxy.core.prompt.chain import Chain


class RoutingRequest(msgspec.Struct, frozen=True, gc=False):
    """One request, as the server has parsed it.

    `lineage` and `session`: 64-bit keys that are made under the tenant's key, so that those of two tenants differ.
    `structural_bytes`: the canonical bytes that the previous turn of an append-only conversation has already sent.
    `thread`: the lineage without its system prompt, None without a session. If a client rewrites the system prompt of a
    running conversation, the thread still identifies it. `parent`: the session that started this one. Placement begins
    at the parent's home region, and the index finds the prefix that both share. `expects`: how the client says that the
    turn will end (`cache.return_times`). `sequences`: how many answers an engine computes; each takes a slot.
    `tenant`: empty if there is only one.
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
    """Turns of its conversation that a compaction took out of its prompt, as far as they were seen (`numbered`)."""

    def stay(self) -> "RoutingRequest":
        """A copy of the request that is not forwarded."""
        return msgspec.structs.replace(self, may_forward=False)
