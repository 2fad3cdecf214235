"""One turn from its request to its usage, and running sums over turns."""

import time
from dataclasses import dataclass, field
from typing import Any

from warmroute._guard import Found, GuardEvent
from warmroute._usage import Measured
from warmroute.contract.homes import Lineage
from warmroute.guard.outcome import UNKNOWN, Keeping
from warmroute.guard.prompt import Prompt


@dataclass(slots=True)
class Turn:
    """One call, from its request to its usage."""

    session: str | None
    streamed: bool
    model: str = ""
    lineage: str = ""
    """The key under which prompts are compared: the session, with the kind and agent of its `session()` block, if set.
    """
    at: Lineage | None = None
    """The turn's lineage (turns whose prompts continue each other); the region that answers becomes its home. None
    without a session."""
    withhold: bool = False
    """Whether only the SDK requested usage, so that the caller must not get the usage chunk."""
    checked: Found | None = None
    """What the guard found; None if the guard compares nothing."""
    prompt: Prompt | None = None
    """The prompt of a call that named no session, which was read to find its conversation."""
    begun_ns: int = field(default_factory=time.time_ns)
    ahead: bool = False
    """Whether the turn computes a prompt before it is needed. Such turns are counted separately."""
    keeping: Keeping = UNKNOWN
    """How long the server caches prompts, and the shortest prompt that it caches."""
    miss: GuardEvent | None = None
    """Why an intact prefix was not cached."""
    receipt_id: str | None = None
    measured: Measured | None = None
    failed: bool = False
    """Whether its call ended without an answer."""
    span: Any = None
    """The turn's span, if telemetry is on and the turn has not ended."""


@dataclass(slots=True)
class Counts:
    """Running sums over turns; the fields are those of `Totals`."""

    turns: int = 0
    turns_measured: int = 0
    receipts: int = 0
    estimated: int = 0
    continued: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    cached_of_tokens: int = 0
    list_nanousd: int | None = None
    cost_nanousd: int | None = None
    saved_nanousd: int | None = None
    losses: dict[str, int] = field(default_factory=dict)

    def add(self, turn: Measured) -> None:
        self.turns_measured += 1
        self.receipts += turn.has_receipt
        self.estimated += turn.is_estimated
        self.continued += turn.continued
        self.prompt_tokens += turn.prompt_tokens
        self.completion_tokens += turn.completion_tokens
        if turn.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + turn.cached_tokens
            self.cached_of_tokens += turn.prompt_tokens
        if turn.amounts_nanousd is not None:
            self.list_nanousd = (self.list_nanousd or 0) + turn.amounts_nanousd.listed
            self.cost_nanousd = (self.cost_nanousd or 0) + turn.amounts_nanousd.cost
            self.saved_nanousd = (self.saved_nanousd or 0) + turn.amounts_nanousd.saved
        for name, tokens in turn.losses.items():
            self.losses[name] = self.losses.get(name, 0) + tokens

    def values(self) -> dict[str, Any]:
        """The sums by the names of `Totals`."""
        sums = {name: getattr(self, name) for name in self.__slots__}
        return {**sums, "losses": dict(self.losses)}
