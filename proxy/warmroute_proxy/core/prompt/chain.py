"""What is stored of a prompt: a chain of prefix hashes, sizes and digests. The module `fingerprint` computes them."""

from typing import NamedTuple

import msgspec


class Chain(msgspec.Struct, frozen=True, gc=False):
    """A prompt's prefix hashes. The prompt is cut at certain positions, and each hash covers all bytes up to one cut.
    `ends`: the positions of the cuts, in bytes of the canonical form.
    """

    hashes: list[int]
    ends: list[int]

    @property
    def total_bytes(self) -> int:
        """The size of the whole prompt in its canonical form."""
        return self.ends[-1] if self.ends else 0


UserPart = tuple[int, int, bytes]
"""A user's message: the number of cuts before it, the hash of the prompt before it, and its canonical bytes."""


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
    """What the proxy stores of a prompt.

    `structural_bytes`: the bytes before the last assistant message; an append-only conversation has sent them before.
    `tools_digest` and `tools_system_digest` (of the tools, and of tools and system prompt) do not depend on the seed.
    `asked`: the user's message at the end of the prompt, if the prompt ends with one. `returned`: the short user
    messages that are followed by an assistant's message. `prompts`: more than 1 if the request has a list of texts or
    of lists of ids, each of which is a separate prompt to the engine. `messages`: a number for each message, four times
    the number of cuts up to its end, plus the number of its role (module `messages`).
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
    """The chain over a prompt's tools, and the digest of the tools."""

    hashes: tuple[int, ...]
    ends: tuple[int, ...]
    digest: int


class Begun(NamedTuple):
    """The fingerprint of a prompt's first messages, kept from an earlier request; one is an assistant's message.

    `hashes` and `ends` cover the tools and these messages; the other fields are as in `Fingerprint`.
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
