"""What is stored of a prompt: a chain of hashes, and some sizes and digests. `fingerprint` makes them."""

from typing import NamedTuple

import msgspec


class Chain(msgspec.Struct, frozen=True, gc=False):
    """A hash for each cut, and where each cut ends, in canonical bytes."""

    hashes: list[int]
    ends: list[int]

    @property
    def total_bytes(self) -> int:
        """Canonical bytes of the whole prompt."""
        return self.ends[-1] if self.ends else 0


UserPart = tuple[int, int, bytes]
"""A user's message: the number of cuts before it, the hash at that place, and its canonical bytes."""


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
    """What the proxy stores of a prompt.

    `structural_bytes`: the bytes before the last assistant message, which an append-only conversation has sent before.
    `tools_digest` and `tools_system_digest` do not depend on the seed. `asked`: the user's message at the end of the
    prompt, if the prompt ends with one. `returned`: the user's messages that an assistant's message follows, without
    long ones. `prompts`: above 1 for a list of texts or of lists of ids, each of which is a separate prompt to the
    engine. `messages` has a number for each message: four times the number of cuts up to its end, plus the number of
    its role (`parts`).
    """

    chain: Chain
    structural_bytes: int
    turn: int
    tools_digest: int
    tools_system_digest: int
    asked: UserPart | None = None
    returned: list[UserPart] = []
    prompts: int = 1
    messages: list[int] = []
    opaque: bool = False
    """Whether the prompt has media: then its number of tokens does not follow from its bytes."""


class ToolsPrefix(NamedTuple):
    """The chain over a prompt's tools, and their digest."""

    hashes: tuple[int, ...]
    ends: tuple[int, ...]
    digest: int


class Begun(NamedTuple):
    """The fingerprint of a prompt's first messages, kept from an earlier request; one of them is an assistant's.

    `hashes` and `ends` belong to these messages and the tools before them; the rest is as in `Fingerprint`.
    """

    hashes: list[int]
    ends: list[int]
    structural_bytes: int
    turn: int
    tools_system_digest: int
    asked: UserPart | None
    returned: list[UserPart]
    messages: list[int]
    opaque: bool
