"""The interface of placement policies in a replay, and `InRegion`, which serves several regions with any policy.

A policy is made for one run: `SomePolicy(fleet)`. Then the simulation calls, in order of virtual time:

- `choose(turn, now_s)` for each arrival: return a usable worker that computes prompts (one of `self.fleet.prefills`),
  or None if the turn waits at the router: later the policy calls `send(turn, worker, now_s)` for it;
- `choose_decode(turn, prefill, now_s)` after that, in a split fleet; by default it returns the decode worker with the
  fewest tokens;
- `started(turn, now_s)` at the first token, `ended(turn, now_s)` at the last; both do nothing by default;
- `lost(turn, now_s)` if the worker went away before the end; `choose` is then called for the turn again;
- `changed(now_s)` after workers came or went (`self.fleet.prefills` is then another list), `restarted(worker, now_s)`
  after a worker that was up restarted with an empty cache; both before `lost` for the turns of that worker;
- `report(now_s)` every `report_every_s`, unless that is 0.

`turn.request` has `blocks` (ids, each standing for a block and all before it), `input_tokens`, `session`, `turn` (see
`trace.py`); `turn.state` is for the policy. A worker has `cached_tokens(request)` (also with `in_flight=True`),
`pending_tokens()`, `requests`, `tokens`, `scheduler` (KV pages and so on), `region`, `name`, `index`. All these values
are exact and of this instant. If the source of a policy approximates such a value, the policy keeps the approximation
in `self`.

Determinism: no clock and no global randomness. A policy that draws has its own `random.Random(seed)`.
A baseline is in a file in `baselines/`, which names its source (repository, path, commit, or paper) and what differs
from the source. `baselines/__init__.py` lists it by name.
"""

from collections.abc import Callable

from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Worker


class Policy:
    """The base of all policies. A policy must define `choose`; all other methods have defaults."""

    exact = True
    """Whether `choose` reads the state of workers. Only then do workers estimate the uncached tokens sent to them."""

    report_every_s = 0.0
    """How often `report` is called; 0: never."""

    send: Callable[[ReplayTurn, Worker, float], None]
    """`send(turn, worker, now_s)`: send a turn that has waited. Set by the simulation."""

    is_last: Callable[[ReplayTurn], bool]
    """`is_last(turn)`: whether it is its session's last turn, as if clients said so. Set by the simulation."""

    later: Callable[[float, Callable[[float], None]], None]
    """`later(when_s, call)`: call `call(when_s)` at that time of the virtual clock. Set by the simulation."""

    def __init__(self, fleet: ReplayFleet) -> None:
        self.fleet = fleet

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker | None:
        """The worker that computes this turn's prompt; None if the turn waits."""
        raise NotImplementedError

    def choose_decode(self, turn: ReplayTurn, prefill: Worker, now_s: float) -> Worker:  # noqa: ARG002 - for subclasses
        return min(self.fleet.decodes, key=lambda worker: worker.tokens)

    def started(self, turn: ReplayTurn, now_s: float) -> None:
        """The turn's first token has come."""

    def ended(self, turn: ReplayTurn, now_s: float) -> None:
        """The turn's last token has come."""

    def lost(self, turn: ReplayTurn, now_s: float) -> None:
        """The turn's worker went away before the end."""

    def changed(self, now_s: float) -> None:
        """Workers came or went."""

    def restarted(self, worker: Worker, now_s: float) -> None:
        """A worker has restarted with an empty cache."""

    def report(self, now_s: float) -> None:
        """Read the engines' reports."""


class InRegion(Policy):
    """Runs a separate policy in each region, for policies that know no regions. Turns stay in the region of arrival."""

    def __init__(self, fleet: ReplayFleet, make: Callable[[ReplayFleet], Policy]) -> None:
        super().__init__(fleet)
        self._fleets = {
            name: ReplayFleet(fleet.workers) for name in dict.fromkeys(each.region for each in fleet.workers)
        }
        self._set_up()
        self._policies = {name: make(region_fleet) for name, region_fleet in self._fleets.items()}
        self.exact = any(policy.exact for policy in self._policies.values())

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker | None:
        policy = self._policies[turn.origin]
        policy.is_last, policy.later, policy.send = self.is_last, self.later, self.send  # set by the simulation
        return policy.choose(turn, now_s)

    def choose_decode(self, turn: ReplayTurn, prefill: Worker, now_s: float) -> Worker:
        return self._policies[turn.origin].choose_decode(turn, prefill, now_s)

    def started(self, turn: ReplayTurn, now_s: float) -> None:
        self._policies[turn.origin].started(turn, now_s)

    def ended(self, turn: ReplayTurn, now_s: float) -> None:
        self._policies[turn.origin].ended(turn, now_s)

    def lost(self, turn: ReplayTurn, now_s: float) -> None:
        self._policies[turn.origin].lost(turn, now_s)

    def changed(self, now_s: float) -> None:
        self._set_up()
        for policy in self._policies.values():
            policy.changed(now_s)

    def _set_up(self) -> None:
        for name, region_fleet in self._fleets.items():
            region_fleet.set_up({each.index for each in self.fleet.workers if each.region == name} & self.fleet.up)

    def restarted(self, worker: Worker, now_s: float) -> None:
        self._policies[worker.region].restarted(worker, now_s)
