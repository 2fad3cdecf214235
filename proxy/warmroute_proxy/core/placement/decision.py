"""What a decision is: where a request goes, what is expected there, and the places that it was chosen from."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, overload

import msgspec

from warmroute_proxy.core.cache.tiers import Held
from warmroute_proxy.core.placement.fleet import Worker

MAX_REASONS: Final = 8

Policy = Literal["cost", "round_robin"]


class Candidate(NamedTuple):
    """One possible place and each term of its cost: their sum is `cost_s`. `id` is a worker's, or `region:<name>`."""

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
    """The cheapest places, the chosen one first; at most `MAX_REASONS`. Equal to the tuple of them.

    Candidates are made when somebody looks: few decisions are ever looked at, and each has been taken by then.
    """

    __slots__ = ("_made", "_make", "_weighed")

    def __init__(
        self,
        made: tuple[Candidate, ...] | None,
        make: Callable[..., tuple[Candidate, ...]] | None = None,
        weighed: tuple[object, ...] = (),
    ) -> None:
        """Either made already, as in a record, or to be made of what was weighed: by `make(*weighed)`."""
        self._made = made
        self._make = make
        self._weighed = weighed

    def chosen(self) -> Candidate:
        """The chosen one alone, where nobody wants to know of the others."""
        if self._made is not None:
            return self._made[0]
        assert self._make is not None
        return self._make(*self._weighed, alone=True)[0]

    def made(self) -> tuple[Candidate, ...]:
        """All of them."""
        if self._made is None:
            assert self._make is not None
            self._made = self._make(*self._weighed)
            self._make, self._weighed = None, ()
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
    prompt are there already, by the index or by the home hint; `predicted` says in which tiers.
    """

    kind: Literal["local", "forward"]
    region: str
    prefill: Worker | None
    decode: Worker | None
    worker: Worker | None
    predicted_cached_tokens: int
    predicted: Held
    known_tokens: int
    best_elsewhere_tokens: int
    prompt_tokens_est: int
    reasons: Reasons
    policy: Policy
    cache_worker: str = msgspec.field(name="holder")  # its name in decision records and admin JSON
    matched_bytes: int

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers of this region that take part: prefill and decode, or the aggregated one; none for a forward."""
        if self.worker is not None:
            return (self.worker,)
        return tuple([worker for worker in (self.prefill, self.decode) if worker is not None])
