"""One accepted request in an engine: its prompt, its planned answer, and its progress."""

import os
import time
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.model.model import Phase, Work
from warmroute_lab.engine.request.prompt_request import PromptRequest
from warmroute_lab.engine.request.text import ScriptedAnswer


class PartnerCall(Protocol):
    """The open connection of a decode engine's job to the prefill engine that computes its prompt."""

    def close(self) -> None:
        """Give up the call: close its connection."""


class Reply(Protocol):
    """Sends the answer of one request. `reply.py` has a class for whole answers and one per kind of stream."""

    def token(self, job: "Job") -> None:
        """`job.work.generated` has grown by one."""

    def finish(self, job: "Job") -> None:
        """The job has ended as planned."""

    def abort(self, job: "Job") -> None:
        """The job was aborted on request: send the tokens so far, with finish reason "abort"."""

    def fail(self, job: "Job", refusal: Refusal) -> None:
        """The job failed: send the refusal."""


class JobTokens(NamedTuple):
    """The token counts that a job reports to its client."""

    prompt: int
    cached: int
    completion: int
    reasoning: int


@dataclass(eq=False, slots=True)
class Job:
    """An accepted prompt. The engine's table has it from `EmbeddedEngine.submit` to `_close`. Then the log of ended
    requests has one entry for it."""

    request: PromptRequest
    dp_rank: int
    page_size: int
    answers: list[ScriptedAnswer]
    work: Work
    created: int = field(default_factory=lambda: int(time.time()))
    reply: Reply = field(init=False)
    ids: list[str] = field(init=False)
    """The id of each choice. A single choice has the request's id; several choices each get a new one."""
    dropped: bool = False
    """Whether the job ended before it was scheduled."""
    prefill_ttft_s: float = 0.0
    """Decode role: the time that the prefill engine modelled for queue, compute and transfer, in virtual seconds."""
    link: PartnerCall | None = None
    """Decode role: the call to the prefill engine while it is open, else None."""
    storage_backend: str | None = None
    """The name of the storage tier's backend; None if none is attached."""
    fault_at: int | None = None
    """The token at which the request's script (`text.py`) orders an error."""

    def __post_init__(self) -> None:
        self.ids = [self.request.rid] if self.request.n == 1 else [os.urandom(16).hex() for _ in range(self.request.n)]

    @property
    def rid(self) -> str:
        """The job's key in the engine's table: the request's id, or the id of the first choice if there are several."""
        return self.ids[0]

    @property
    def bootstrap_room(self) -> int:
        """The bootstrap room of a PD job, checked when the job was accepted. Raises: LookupError for other jobs."""
        if self.request.bootstrap_room is None:
            raise LookupError("this job has no bootstrap room")
        return self.request.bootstrap_room

    def completion_tokens(self) -> int:
        generated = self.work.generated
        return sum(answer.count(generated) for answer in self.answers)

    def counts(self) -> JobTokens:
        """The token counts to report: the prompt counts once, and the choices are summed.

        If there are several choices, SGLang computes their prompt once before it starts them. Each choice then finds
        all complete pages of the prompt cached, so the request reports these pages as cached.
        """
        work = self.work
        if self.dropped:
            return JobTokens(0, 0, 0, 0)
        cached = (
            work.cached_tokens if self.request.n == 1 else (work.prompt_tokens - 1) // self.page_size * self.page_size
        )
        generated = work.generated
        reasoning = sum(answer.reasoning_tokens(generated) for answer in self.answers) if self.request.thinking else 0
        return JobTokens(work.prompt_tokens, cached, self.completion_tokens(), reasoning)

    def drop(self) -> None:
        """Note that the job ends now. A job that was never scheduled reports no tokens at all."""
        self.dropped = self.work.phase in (Phase.NEW, Phase.WAITING)

    def ttft_s(self) -> float | None:
        """The modelled time to the first token, in virtual seconds; None before that token."""
        work = self.work
        if work.first_token_s is None:
            return None
        if work.allocated_s is None:
            return work.first_token_s - work.arrival_s
        own_wait_s = (work.allocated_s - work.arrival_s) + (work.first_token_s - work.delivered_s)
        return self.prefill_ttft_s + own_wait_s
