"""Policies that know nothing of regions, in a fleet of several: each region has its own, turns stay there."""

from collections.abc import Callable

from warmroute_proxy.replay.fleet import ReplayFleet, ReplayTurn, Worker
from warmroute_proxy.replay.policy import Policy


class InRegion(Policy):
    """A policy for each region, over the workers of that region."""

    def __init__(self, fleet: ReplayFleet, make: Callable[[ReplayFleet], Policy]) -> None:
        super().__init__(fleet)
        self._fleets = {
            name: ReplayFleet(fleet.workers) for name in dict.fromkeys(each.region for each in fleet.workers)
        }
        self.changed(0.0)
        self._policies = {name: make(region_fleet) for name, region_fleet in self._fleets.items()}
        self.exact = any(policy.exact for policy in self._policies.values())

    def choose(self, turn: ReplayTurn, now_s: float) -> Worker | None:
        policy = self._policies[turn.origin]
        policy.is_last, policy.later, policy.send = self.is_last, self.later, self.send  # those of the simulation
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
        for name, region_fleet in self._fleets.items():
            region_fleet.set_up({each.index for each in self.fleet.workers if each.region == name} & self.fleet.up)
        for policy in getattr(self, "_policies", {}).values():
            policy.changed(now_s)

    def restarted(self, worker: Worker, now_s: float) -> None:
        self._policies[worker.region].restarted(worker, now_s)
