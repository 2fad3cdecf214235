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
"""A user's message: the cuts in front of it, the hash there, and its canonical bytes."""


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
    """What the proxy stores of a prompt.

    `structural_bytes` are those before the last assistant message, which an append-only conversation has already sent;
    `tools_digest` and `tools_system_digest` do not depend on the seed. `asked` is the user's message that ends it, if
    one does; `returned` are those that an assistant's message follows, but for long ones. `prompts` is above 1 for a
    list of texts or of lists of ids: each is a prompt of its own to the engine. `messages`: of each message four times
    the number of cuts up to its end, plus the number of its role (`parts`).
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
    """Whether it holds media: then the number of its tokens does not follow from its bytes."""


class ToolsPrefix(NamedTuple):
    """The chain over a prompt's tools, and their digest."""

    hashes: tuple[int, ...]
    ends: tuple[int, ...]
    digest: int


class Begun(NamedTuple):
    """The fingerprint of the first messages of a prompt, which were read before; an assistant's is among them.

    `hashes` and `ends` are those of its first messages and of the tools before them; the rest is as in `Fingerprint`.
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
