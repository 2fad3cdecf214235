"""A decision: where a request goes, what is expected there, and the candidates that were compared."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, overload

import msgspec

from warmroute_proxy.core.cache.tiers import Held
from warmroute_proxy.core.placement.fleet import Worker

MAX_REASONS: Final = 8

Policy = Literal["cost", "round_robin"]


class Candidate(NamedTuple):
    """One possible worker or region, with each term of its cost (`costs`); their sum is `cost_s`. `id` is the worker's
    id, or `region:<name>`. Records of decisions hold it as an array: a new field stands at the end, with a default.
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
    """Up to `MAX_REASONS` candidates: the chosen one, then the cheapest others. Equal to the tuple of them.

    Candidates are made when they are first read, after the decision: few decisions' reasons are ever read.
    """

    __slots__ = ("_made", "_make", "_weighed", "_winner")

    def __init__(
        self,
        made: tuple[Candidate, ...] | None,
        make: Callable[..., tuple[Candidate, ...]] | None = None,
        weighed: object = None,
        winner: int = 0,
    ) -> None:
        """Take candidates that are `made` already, as in a record, or make them later by `make(weighed, winner)`."""
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

    `cache_worker` is the id of the worker (or `region:<name>`) whose cache will hold the prompt. `matched_bytes` of the
    prompt are there already, by the index or by the home; `predicted` are their tokens by tier. `other_worker_tokens`:
    how much of the prompt another worker of this region has. `other_region_tokens`: the most that any other region has.
    `shared_bytes` of the prompt also begin other conversations. `known`: whether the request is the next turn of a
    known conversation (`placement.is_known`); None for round robin and in records older than the field.
    `restarted_tokens` of the prompt are known to have been in caches that were lost with their engines.
    `memory_wait_s`: how long the request waited for KV memory before it was sent. `waited_to_begin`: whether its
    session had not begun at that time. `head_bytes`: the prefix that some worker has, and after which other prompts may
    differ; `branches`: how many others have just differed after it (`forks`). `priority`, `program` and
    `ignored_headers` are what its client said of its place in the queue, if anything.
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
    cache_worker: str = msgspec.field(name="holder")  # its name in decision records and admin JSON
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
        """The workers of this region that take part: prefill and decode, or the aggregated one; none for a forward."""
        if self.worker is not None:
            return (self.worker,)
        return tuple([worker for worker in (self.prefill, self.decode) if worker is not None])
