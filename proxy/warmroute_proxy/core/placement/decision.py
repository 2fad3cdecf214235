"""Defines a decision: where a request goes, what is expected there, and which candidates were compared."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, overload

import msgspec

from warmroute_proxy.core.cache.tiers import Held
from warmroute_proxy.core.placement.fleet import Worker

MAX_REASONS: Final = 8

Policy = Literal["cost", "round_robin"]


class Candidate(NamedTuple):
    """One possible worker or region, with each term of its cost (`costs`); `cost_s` is their sum. `id`: the worker's
    id, or `region:<name>`. Decision records hold candidates as arrays, so new fields must be added at the end, with a
    default.
    """

    id: str
    cost_s: float
    network_s: float
    queue_s: float
    compute_s: float
    load_s: float
    decode_s: float
    transfer_s: float
    others_s: float
    reuse_s: float
    churn_s: float
    uncached_tokens: int
    host_tokens: int
    storage_tokens: int
    note: str


class Reasons(Sequence[Candidate]):
    """Up to `MAX_REASONS` candidates: the chosen one, then the cheapest others. It equals the tuple of these
    candidates.

    Candidates are computed when they are first read, after the decision, because most decisions' reasons are never
    read.
    """

    __slots__ = ("_made", "_make", "_weighed", "_winner")

    def __init__(
        self,
        made: tuple[Candidate, ...] | None,
        make: Callable[..., tuple[Candidate, ...]] | None = None,
        weighed: object = None,
        winner: int = 0,
    ) -> None:
        """`made`: candidates that exist already, as in a record; otherwise `make(weighed, winner)` makes them later."""
        self._made = made
        self._make = make
        self._weighed = weighed
        self._winner = winner

    def chosen(self) -> Candidate:
        if self._made is not None:
            return self._made[0]
        assert self._make is not None
        return self._make(self._weighed, self._winner, alone=True)[0]

    def made(self) -> tuple[Candidate, ...]:
        if self._made is None:
            assert self._make is not None
            self._made = self._make(self._weighed, self._winner)
            self._make = self._weighed = None
        return self._made

    @overload
    def __getitem__(self, at: int) -> Candidate: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, at: int | slice) -> Candidate | tuple[Candidate, ...]:
        return self.made()[at]

    def __len__(self) -> int:
        return len(self.made())

    def __eq__(self, other: object) -> bool:
        return self.made() == (other.made() if isinstance(other, Reasons) else other)

    def __hash__(self) -> int:
        return hash(self.made())

    def __repr__(self) -> str:
        return repr(self.made())


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes, what was expected there, and why.

    `cache_worker`: the id of the worker (or `region:<name>`) whose cache will hold the prompt. `matched_bytes`: how
    much of the prompt is expected to be cached there, by the index or because the region is the home; `predicted`: the
    tokens of this part, by tier. `other_worker_tokens`: the longest part of the prompt that another worker of this
    region has; `other_region_tokens`: the longest part that another region has. `shared_bytes`: the prefix with which
    other conversations have begun, too. `known`: whether the request is the next turn of a known conversation
    (`placement.is_known`); None for round robin and in records older than the field. `restarted_tokens`: how much of
    the prompt was in caches that were lost with their engines. `memory_wait_s`: how long the request waited for KV
    memory before it was sent; `waited_to_begin`: whether its session had not begun then. `head_bytes`: the longest
    prefix that some worker has, if other prompts may branch off after it; `branches`: how many prompts have just done
    so (`forks`). `priority`, `program` and `ignored_headers`: what the client said about the request's place in the
    queue.
    """

    kind: Literal["local", "forward"]
    region: str
    prefill: Worker | None
    decode: Worker | None
    worker: Worker | None
    predicted_cached_tokens: int
    predicted: Held
    known_tokens: int
    other_worker_tokens: int
    prompt_tokens_est: int
    reasons: Reasons
    policy: Policy
    cache_worker: str = msgspec.field(name="holder")  # its name in decision records and in the admin API's JSON
    matched_bytes: int
    other_region: str = ""
    other_region_tokens: int = 0
    shared_bytes: int = 0
    known: bool | None = None
    restarted_tokens: int = 0
    memory_wait_s: float = 0.0
    waited_to_begin: bool = False
    head_bytes: int = 0
    branches: int = 0
    priority: str = ""
    program: str = ""
    ignored_headers: tuple[str, ...] = ()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers of this region that take part: prefill and decode, or an aggregated one. Empty for a forward."""
        if self.worker is not None:
            return (self.worker,)
        return tuple([worker for worker in (self.prefill, self.decode) if worker is not None])
