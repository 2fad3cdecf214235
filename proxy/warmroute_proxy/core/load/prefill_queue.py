"""The prompts that were sent to a worker and have no first token yet, oldest first.

Bringing cached tokens to the device from a slower tier takes time before a prompt is computed: it counts like as many
tokens (`moving`) as could be computed meanwhile, apart from those that are.
"""

from collections import OrderedDict


class PrefillQueue:
    """Tokens to compute, by request. Engines prefill in order of arrival, so the oldest prompt is the one at work."""

    __slots__ = (
        "_busy_s",
        "_moving_of",
        "_tokens_of",
        "at_work_tokens",
        "ended_tokens",
        "moving_tokens",
        "since_s",
        "tokens",
    )

    def __init__(self) -> None:
        self._tokens_of: OrderedDict[object, int] = OrderedDict()
        self._moving_of: dict[object, int] = {}
        self.tokens = 0
        self.moving_tokens = 0
        self.ended_tokens = 0  # of all prompts that were removed, since the beginning
        self.at_work_tokens = 0  # of the oldest prompt, with those that move
        self.since_s = 0.0  # when the oldest prompt became the oldest
        self._busy_s = 0.0  # in which any prompt was queued, until `since_s`

    def __len__(self) -> int:
        return len(self._tokens_of)

    @property
    def oldest(self) -> object:
        """The request whose prompt is at work, None where none is."""
        for request in self._tokens_of:
            return request
        return None

    def newest(self, most: int) -> list[object]:
        """The requests that were sent last, `most` at most."""
        return list(self._tokens_of)[-most:]

    def add(self, request: object, tokens: int, now_s: float, moving: int = 0) -> None:
        """Append a prompt that has `tokens` tokens to compute."""
        if not self._tokens_of:
            self.since_s = now_s
            self.at_work_tokens = tokens + moving
        if moving:
            self._moving_of[request] = moving
            self.moving_tokens += moving
        self._tokens_of[request] = tokens
        self.tokens += tokens

    def remove(self, request: object, now_s: float) -> None:
        """Remove a prompt that has been computed, or never will be."""
        ended = self._tokens_of.pop(request)
        self.tokens -= ended
        self.ended_tokens += ended
        self.at_work_tokens = 0
        for tokens in self._tokens_of.values():  # of the oldest one
            self.at_work_tokens = tokens
            break
        if self._moving_of:
            self.moving_tokens -= self._moving_of.pop(request, 0)
            self.at_work_tokens += self._moving_of.get(self.oldest, 0)
        self._busy_s += now_s - self.since_s
        self.since_s = now_s

    def busy_s(self, now_s: float) -> float:
        """Seconds in which any prompt was queued, since the beginning."""
        return self._busy_s + now_s - self.since_s if self._tokens_of else self._busy_s
