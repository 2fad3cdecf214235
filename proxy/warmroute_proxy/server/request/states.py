"""The state machines of a request and of an attempt, as tables: which state follows from a state and an event.

`REQUEST` has the transitions of an `InferenceRequest`, `ATTEMPT` those of an `Attempt`. `next_state` raises
`IllegalTransition` for a transition that is not in the table. `scripts/state_diagrams.py` draws the two tables in
`docs/contribute/architecture.md`.
"""

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Final, TypeVar


class RequestState(IntEnum):
    PLACING = auto()
    """No engine has the request: it has just come, its wait is over, or its last attempt or forward has failed."""
    QUEUED = auto()
    """The request waits in the queue for capacity."""
    FORWARDED = auto()
    """Another region serves the request."""
    DISPATCHED = auto()
    """An engine has the request, and computes its prompt."""
    PREFILLED = auto()
    """The prompt is computed; no content has come yet."""
    ANSWERING = auto()
    """Content was sent to the client, and cannot be taken back."""
    LEFT = auto()
    """The client has left; the engine's final usage is awaited."""
    SETTLING = auto()
    """The ledger row is being written; the client waits for the end of the answer."""
    SETTLING_LEFT = auto()
    """The ledger row is being written, and the client has left."""
    ENDED = auto()
    CRASHED = auto()
    """The proxy itself failed, which ended the request."""


class RequestEvent(IntEnum):
    QUEUE = auto()
    ADMIT = auto()
    FORWARD = auto()
    HOME_FAILED = auto()
    FORWARD_ENDED = auto()
    DISPATCH = auto()
    PREFILL = auto()
    CONTENT = auto()
    FAIL = auto()
    CLIENT_LEFT = auto()
    SETTLE = auto()
    ROW_WRITTEN = auto()
    REFUSE = auto()
    CRASH = auto()


class AttemptState(IntEnum):
    NEW = auto()
    SENT = auto()
    """The legs (the requests to the engines) were sent; no content has come yet."""
    ANSWERING = auto()
    """Content has come."""
    STOPPING = auto()
    """The engines were asked to abort; their final usage is awaited."""
    FAILING = auto()
    """The answering leg has failed. The attempt waits a moment, in case the prefill leg turns out to be at fault."""
    FINISHED = auto()
    FAILED = auto()
    CLOSED = auto()
    """The owner has given the attempt up."""


class AttemptEvent(IntEnum):
    SEND = auto()
    CONTENT = auto()
    ABORT = auto()
    LEG_FAILED = auto()
    FINISH = auto()
    FAIL = auto()
    CLOSE = auto()


_R, _A = RequestState, AttemptState
_ON, _DO = RequestEvent, AttemptEvent

REQUEST: Final[Mapping[tuple[RequestState, RequestEvent], RequestState]] = {
    (_R.PLACING, _ON.QUEUE): _R.QUEUED,
    (_R.PLACING, _ON.FORWARD): _R.FORWARDED,
    (_R.PLACING, _ON.DISPATCH): _R.DISPATCHED,
    (_R.PLACING, _ON.REFUSE): _R.ENDED,
    (_R.PLACING, _ON.SETTLE): _R.SETTLING,  # an attempt has failed, and there is no retry
    (_R.QUEUED, _ON.ADMIT): _R.PLACING,
    (_R.QUEUED, _ON.REFUSE): _R.ENDED,
    (_R.QUEUED, _ON.CLIENT_LEFT): _R.ENDED,
    (_R.FORWARDED, _ON.HOME_FAILED): _R.PLACING,
    (_R.FORWARDED, _ON.FORWARD_ENDED): _R.ENDED,
    (_R.DISPATCHED, _ON.PREFILL): _R.PREFILLED,
    (_R.DISPATCHED, _ON.CONTENT): _R.ANSWERING,
    (_R.DISPATCHED, _ON.FAIL): _R.PLACING,
    (_R.DISPATCHED, _ON.CLIENT_LEFT): _R.LEFT,
    (_R.DISPATCHED, _ON.SETTLE): _R.SETTLING,
    (_R.PREFILLED, _ON.CONTENT): _R.ANSWERING,
    (_R.PREFILLED, _ON.FAIL): _R.PLACING,
    (_R.PREFILLED, _ON.CLIENT_LEFT): _R.LEFT,
    (_R.PREFILLED, _ON.SETTLE): _R.SETTLING,
    (_R.ANSWERING, _ON.FAIL): _R.PLACING,
    (_R.ANSWERING, _ON.CLIENT_LEFT): _R.LEFT,
    (_R.ANSWERING, _ON.SETTLE): _R.SETTLING,
    (_R.LEFT, _ON.SETTLE): _R.SETTLING_LEFT,
    (_R.SETTLING, _ON.CLIENT_LEFT): _R.SETTLING_LEFT,
    (_R.SETTLING, _ON.ROW_WRITTEN): _R.ENDED,
    (_R.SETTLING_LEFT, _ON.ROW_WRITTEN): _R.ENDED,
    (_R.CRASHED, _ON.ROW_WRITTEN): _R.CRASHED,
    **{(state, _ON.CRASH): _R.CRASHED for state in RequestState},
}

ATTEMPT: Final[Mapping[tuple[AttemptState, AttemptEvent], AttemptState]] = {
    (_A.NEW, _DO.SEND): _A.SENT,
    (_A.NEW, _DO.ABORT): _A.STOPPING,
    (_A.SENT, _DO.CONTENT): _A.ANSWERING,
    (_A.SENT, _DO.ABORT): _A.STOPPING,
    (_A.ANSWERING, _DO.ABORT): _A.STOPPING,
    **{
        edge: after
        for state in (_A.SENT, _A.ANSWERING, _A.STOPPING)
        for edge, after in (
            ((state, _DO.LEG_FAILED), _A.FAILING),
            ((state, _DO.FINISH), _A.FINISHED),
            ((state, _DO.FAIL), _A.FAILED),
        )
    },
    (_A.FAILING, _DO.FINISH): _A.FINISHED,
    (_A.FAILING, _DO.FAIL): _A.FAILED,
    **{(state, _DO.ABORT): state for state in (_A.STOPPING, _A.FAILING, _A.FINISHED, _A.FAILED, _A.CLOSED)},
    **{(state, _DO.CLOSE): _A.CLOSED for state in AttemptState},
}

UNDER_WAY: Final = frozenset({_R.DISPATCHED, _R.PREFILLED, _R.ANSWERING})
"""States in which an engine works on the request and the client is still connected."""

ATTEMPT_ENDED: Final = frozenset({_A.FINISHED, _A.FAILED, _A.CLOSED})

State = TypeVar("State", bound=IntEnum)
Event = TypeVar("Event", bound=IntEnum)


class IllegalTransition(Exception):
    """An event came in a state in which it cannot happen, because of a bug in the proxy."""


def next_state(table: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    try:
        return table[state, event]
    except KeyError:
        raise IllegalTransition(f"{event.name} cannot happen in {type(state).__name__} {state.name}") from None
