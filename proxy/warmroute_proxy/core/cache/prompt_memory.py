"""The newest prompts of each session without their text, so that a later one can be compared with them.

A session has several prompts (a title, sub-agents, a conversation that was edited), so up to `MAX_PROMPTS` of it are
kept, the newest first. A prompt replaces the one that it continues. A conversation without a session key that was
edited is another session; it is found by its first user's message.

Limit: bytes, given by the caller; the session that was served least recently goes first.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from warmroute_proxy.core.prompt.breaks import PromptShape
from warmroute_proxy.core.prompt.chain import Chain

MAX_PROMPTS: Final = 6
_BYTES_PER_CUT: Final = 96  # a hash and an end, each an integer of its own in a list
_BYTES_PER_MESSAGE: Final = 40
_BYTES_PER_PROMPT: Final = 600


class KnownPrompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt that was served, and what was counted of it."""

    lineage: int
    shape: PromptShape
    turn: int
    prompt_tokens: int
    completion_tokens: int
    region: str
    workers: tuple[str, ...]

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        shape = self.shape
        cuts = _BYTES_PER_CUT * len(shape.hashes) + _BYTES_PER_MESSAGE * len(shape.messages)
        return _BYTES_PER_PROMPT + cuts + shape.head.size

    def is_continued_by(self, chain: Chain) -> bool:
        """Whether a prompt begins with the whole of this one."""
        hashes, at = self.shape.hashes, len(self.shape.hashes)
        return at <= len(chain.hashes) and chain.hashes[at - 1] == hashes[-1]


_NONE: Final[tuple[KnownPrompt, ...]] = ()


class PromptMemory:
    """The prompts of all sessions."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` 0: nothing is kept."""
        self.max_bytes = max_bytes
        self.bytes = 0
        self._by_session: OrderedDict[int, tuple[KnownPrompt, ...]] = OrderedDict()
        self._session_by_asked: dict[int, int] = {}

    def continued(self, session: int, lineage: int, chain: Chain) -> KnownPrompt | None:
        """The prompt that another one of its lineage continues."""
        for prompt in self._by_session.get(session, _NONE):
            if prompt.lineage == lineage and prompt.is_continued_by(chain):
                return prompt
        return None

    def others(self, session: int, asked: int, *, is_under_way: bool) -> Iterator[KnownPrompt]:
        """The prompts of a session, then of the newest one that began with the same message, if it is under way."""
        yield from self._by_session.get(session, _NONE)
        if is_under_way and asked:
            other = self._session_by_asked.get(asked, session)
            if other != session:
                yield from self._by_session.get(other, _NONE)

    def remember(self, session: int, prompt: KnownPrompt, chain: Chain) -> None:
        """Store a prompt that was served. It replaces those that it continues."""
        before = self._by_session.pop(session, _NONE)
        others = [old for old in before if old.lineage != prompt.lineage or not old.is_continued_by(chain)]
        now = (prompt, *others[: MAX_PROMPTS - 1])
        self._by_session[session] = now
        self.bytes += _size(now) - _size(before)
        if asked := prompt.shape.head.asked:
            self._session_by_asked[asked] = session
        while self.bytes > self.max_bytes and self._by_session:
            dropped, prompts = self._by_session.popitem(last=False)
            self.bytes -= _size(prompts)
            for each in prompts:
                if self._session_by_asked.get(each.shape.head.asked) == dropped:
                    del self._session_by_asked[each.shape.head.asked]


def _size(prompts: Sequence[KnownPrompt]) -> int:
    return sum([prompt.size for prompt in prompts])
