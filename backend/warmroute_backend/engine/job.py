"""One accepted request in an engine: what was asked, what will be answered, and how far it is."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from warmroute_backend.engine.ask import Ask
from warmroute_backend.engine.errors import Refusal
from warmroute_backend.engine.model import Work
from warmroute_backend.engine.text import Answer


class Call(Protocol):
    """What a job may have open to its partner."""

    def close(self) -> None:
        """Give up."""


class Reply(Protocol):
    """How a job is told to its client: `reply.py` has one for each endpoint, streamed or whole."""

    def token(self) -> None:
        """`job.work.generated` has grown by one."""

    def finish(self) -> None:
        """The job has ended as planned."""

    def abort(self) -> None:
        """The job was aborted on request: what there is, with finish reason "abort"."""

    def fail(self, refusal: Refusal) -> None:
        """The engine could not go on."""


@dataclass(eq=False, slots=True)
class Job:
    """A live request. It is in the engine's table from acceptance to its one entry in the finish log."""

    ask: Ask
    model: str
    dp_rank: int
    answers: list[Answer]
    work: Work
    created: int = field(default_factory=lambda: int(time.time()))
    reply: Reply = field(init=False)
    prefill_ttft_s: float = 0.0
    """Decode role: queue, compute and transfer as the prefill engine modelled them, in virtual seconds."""
    link: Call | None = None
    """Decode role: the call to the prefill engine's rendezvous while it is open."""
    fault_at: int | None = None
    """The token at which the request's script wants an error."""

    @property
    def rid(self) -> str:
        return self.ask.rid

    @property
    def room(self) -> int:
        """The rendezvous of a PD job, checked at acceptance; other jobs have none."""
        if self.ask.room is None:
            raise LookupError("this job has no room")
        return self.ask.room

    def completion_tokens(self) -> int:
        generated = self.work.generated
        return sum(answer.count(generated) for answer in self.answers)

    def reasoning_tokens(self) -> int:
        generated = self.work.generated
        return sum(answer.reasoning_tokens(generated) for answer in self.answers) if self.ask.thinking else 0

    def ttft_s(self) -> float | None:
        """The modelled time to the first token, in virtual seconds; None before it."""
        work = self.work
        if work.first_token_s is None:
            return None
        if work.allocated_s is None:
            return work.first_token_s - work.arrival_s
        own_wait_s = (work.allocated_s - work.arrival_s) + (work.first_token_s - work.delivered_s)
        return self.prefill_ttft_s + own_wait_s
