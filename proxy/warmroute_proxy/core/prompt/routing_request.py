"""What placement knows of a request: numbers and names, never its text."""

import msgspec

from warmroute_proxy.core.prompt.chain import Chain


class RoutingRequest(msgspec.Struct, frozen=True, gc=False):
    """One request, as the server has parsed it.

    `lineage` and `session` are 64-bit keys made under the tenant's key: equal keys of two tenants differ.
    `structural_bytes` are the canonical bytes that the previous turn of an append-only conversation has already sent.
    `thread` is a lineage without its system prompt, None for a request without a session: where a client rewrote the
    system prompt of a running conversation, it identifies the conversation that the rewritten one continues. `parent`
    is the session that started this one: placement begins at its home region; what a child shares with its parent is a
    prefix, which the index finds. `expects` is how its client says that the turn will end (`cache.return_times`).
    `sequences` are the answers that an engine computes for it: each takes a slot. `tenant`: whose it is, empty if
    there are not several.
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

    @property
    def number(self) -> int:
        """The number of its turn in its conversation."""
        return self.turn + self.turns_before

    def stay(self) -> "RoutingRequest":
        """The same, of a request that is not forwarded any more."""
        return msgspec.structs.replace(self, may_forward=False)
