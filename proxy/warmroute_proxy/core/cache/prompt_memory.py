"""Keeps the newest prompts of each session, without their text, so that later prompts can be compared with them.

A session has several prompts (a title, sub-agents, a conversation that was edited), so up to `MAX_PROMPTS` prompts of
each session are kept, the newest first. A prompt replaces the earlier prompt that it continues. If a client edits a
conversation without a session key, the conversation becomes another session. The old session is then found by the hash
of its first user message.

Limit: `max_bytes`, divided between tenants (`warmroute.contract.shares`). The tenant that uses most memory first loses
its least recently served session.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from warmroute.contract.shares import Division
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.prompt.breaks import PromptShape
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.messages import ASSISTANT
from warmroute_proxy.core.prompt.parts import Head

MAX_PROMPTS: Final = 6
_BYTES_PER_CUT: Final = 140  # a hash, an end and a share of a message's entry, each an int object in a list
_BYTES_PER_PROMPT: Final = 600


class KnownPrompt:
    """A served prompt and its token counts, until the next turn of its conversation replaces it."""

    __slots__ = (
        "chain", "completion_tokens", "head", "lineage", "messages",
        "prompt_tokens", "region", "settings", "turns_before", "worker",
    )  # fmt: skip

    def __init__(self, lineage: int, head: Head, chain: Chain, messages: list[int]) -> None:
        """`messages`: as in the prompt's `Fingerprint`."""
        self.lineage = lineage
        self.head = head
        self.chain = chain
        self.messages = messages
        self.prompt_tokens = self.completion_tokens = self.turns_before = self.settings = 0
        self.worker = self.region = ""

    @property
    def shape(self) -> PromptShape:
        return PromptShape(self.head, self.chain.hashes, self.chain.ends, self.messages)

    def as_turn(self, salt_epoch: int) -> SettledTurn:
        """The turn of this prompt, for a prompt that continues it. `salt_epoch`: of both, since their hashes agree."""
        chain, turn = self.chain, 1 + sum([mark & 3 == ASSISTANT for mark in self.messages])
        return SettledTurn(
            (self.worker,), self.region, chain.ends[-1], self.prompt_tokens, self.completion_tokens, None,
            turn, salt_epoch, chain.hashes[-1], self.turns_before, self.settings,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """About how many bytes of memory this prompt takes."""
        return _BYTES_PER_PROMPT + _BYTES_PER_CUT * len(self.chain.hashes) + self.head.size


_NONE: Final[list[KnownPrompt]] = []


class PromptMemory:
    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: the size of the memory; if it is 0, nothing is remembered."""
        self.max_bytes = max_bytes
        self.bytes = 0
        self._by_session: OrderedDict[int, list[KnownPrompt]] = OrderedDict()
        self._division: Division[int, list[KnownPrompt]] = Division(None, _size_of)
        self._session_by_asked: dict[int, int] = {}

    def continued(self, session: int, lineage: int, hashes: list[int]) -> KnownPrompt | None:
        for prompt in self._by_session.get(session, _NONE):
            if prompt.lineage == lineage and _continues(hashes, prompt):
                return prompt
        return None

    def others(self, session: int, asked: int, *, beyond: bool) -> Iterator[KnownPrompt]:
        """The prompts of a session, then those of the newest other session with an equal first user message.

        `asked`: the hash of the first user message. `beyond`: whether other sessions count. They do for a later turn
        of a conversation without a session key. A first turn, and a session with a key, have only their own prompts.
        """
        yield from self._by_session.get(session, _NONE)
        if beyond and asked:
            other = self._session_by_asked.get(asked, session)
            if other != session:
                yield from self._by_session.get(other, _NONE)

    def renew(
        self, session: int, prompt: KnownPrompt, chain: Chain, messages: list[int], tenant: str = ""
    ) -> KnownPrompt:
        """Replace `prompt` by the prompt that continued it, which `chain` and `messages` describe. Returns the stored
        prompt. `tenant`: the owner of the session, if there are several tenants.
        """
        prompts = self._by_session.get(session, _NONE)
        newest = bool(prompts) and prompts[0] is prompt
        at = 0 if newest else next((at for at, each in enumerate(prompts) if each is prompt), None)
        if at is None or not _continues(chain.hashes, prompt):
            return self.add(session, KnownPrompt(prompt.lineage, prompt.head, chain, messages), tenant)
        if at:
            prompts.insert(0, prompts.pop(at))
        self.bytes += _BYTES_PER_CUT * (len(chain.hashes) - len(prompt.chain.hashes))
        prompt.chain = chain
        prompt.messages = messages
        self._by_session.move_to_end(session)
        if self._division.begun or 2 * self.bytes > self.max_bytes:
            self._divide(session)
        return prompt

    def add(self, session: int, prompt: KnownPrompt, tenant: str = "") -> KnownPrompt:
        """Store a prompt that continues no other. A session with more than `MAX_PROMPTS` loses its oldest."""
        prompts = self._by_session.setdefault(session, [])
        prompts.insert(0, prompt)
        if tenant:
            self._division.owners[session] = tenant
        self.bytes += prompt.size
        self._by_session.move_to_end(session)
        left_out = prompts[MAX_PROMPTS:]
        del prompts[MAX_PROMPTS:]
        self._left_out(session, left_out, {each.head.asked for each in prompts} if left_out else set())
        if asked := prompt.head.asked:
            self._session_by_asked[asked] = session
        if self._division.begun or 2 * self.bytes > self.max_bytes:
            self._divide(session)
        return prompt

    def _divide(self, session: int) -> None:
        """Count the new prompts of a session, and drop sessions until all prompts fit in `max_bytes`."""
        self._division.stored(session, self._by_session)
        while self.bytes > self.max_bytes and self._by_session:
            dropped = self._division.next_to_go()
            self._division.discard(dropped)
            self._left_out(dropped, self._by_session.pop(dropped), set())

    def _left_out(self, session: int, prompts: list[KnownPrompt], stay: set[int]) -> None:
        """Forget `prompts` of a session. `stay`: the hashes of the first user messages of the prompts that stay."""
        for each in prompts:
            self.bytes -= each.size
            asked = each.head.asked
            if asked not in stay and self._session_by_asked.get(asked) == session:
                del self._session_by_asked[asked]


def _size_of(_session: int, prompts: list[KnownPrompt]) -> int:
    """The bytes of a session's prompts. Not a lambda, because an empty `PromptMemory` is pickled."""
    return sum([each.size for each in prompts])


def _continues(hashes: list[int], prompt: KnownPrompt) -> bool:
    known = prompt.chain.hashes
    at = len(known)
    return at <= len(hashes) and hashes[at - 1] == known[-1]
