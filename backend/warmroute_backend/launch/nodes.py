"""The launchers of a plan's nodes: what each reports, when all start, and what is wrong on another node. Pure.

A launcher starts nothing until all other launchers report the same plan, and one launcher was ordered to start. Engines
also wait for the KV stores of all nodes. Later troubles of another node are shown, but stop nothing, because the
remaining engines can serve.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from warmroute_backend.launch.states import State

ASK_EVERY_S: Final = 2.0
LOST_S: Final = 15.0
MAX_PROCESSES: Final = 256
MAX_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a launcher on its node. `plan`: digest of the plan's file; `goes`: whether the launcher knows of an
    order to start; `states`: states of all its processes; `stores`: states of those processes that are stores, for
    which engines of all nodes wait.
    """

    node: int
    plan: str
    goes: bool
    states: Mapping[str, str] = field(default_factory=dict)
    stores: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OtherNode:
    """What is known of another node. `answered_s`: time of its launcher's last answer; None if it never answered."""

    node: int
    host: str
    answered_s: float | None = None
    report: Report | None = None


def observed(before: OtherNode, report: Report | None, now_s: float) -> OtherNode:
    """The other node after a request to its launcher. `report`: None if the launcher did not answer."""
    return before if report is None else replace(before, answered_s=now_s, report=report)


def may_start(own: Report, others: Iterable[OtherNode], now_s: float) -> bool:
    others = list(others)
    here = all(_is_here(other, now_s) and _report(other).plan == own.plan for other in others)
    return here and (own.goes or any(_report(other).goes for other in others))


def stores_serve(others: Iterable[OtherNode]) -> bool:
    """Whether all known stores of other nodes serve, so that engines need not wait."""
    states = [state for other in others if other.report is not None for state in other.report.stores.values()]
    return all(state == State.READY for state in states)


def trouble(own: Report, other: OtherNode, now_s: float) -> str:
    """What is wrong with another node; empty if nothing is wrong."""
    who = f"node {other.node} ({other.host})"
    if other.report is None or other.answered_s is None:
        return f"{who}: no launcher has answered yet"
    if not _is_here(other, now_s):
        return f"{who} is lost: its launcher has not answered for {now_s - other.answered_s:.0f} s"
    if other.report.plan != own.plan:
        return f"{who} has another plan.toml"
    down = [f"{name} is {state}" for name, state in other.report.states.items() if state in {"failed", "backing_off"}]
    return f"{who}: {', '.join(down)}" if down else ""


def read_report(found: Mapping[str, Any], node: int) -> Report | None:
    """The report in another launcher's JSON; None if it is not about `node`."""
    states, stores = found.get("states"), found.get("stores")
    if found.get("node") != node or not isinstance(states, dict) or not isinstance(stores, dict):
        return None
    return Report(node, str(found.get("plan"))[:MAX_CHARS], found.get("goes") is True, _texts(states), _texts(stores))


def _texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {str(name)[:MAX_CHARS]: str(state)[:MAX_CHARS] for name, state in list(found.items())[:MAX_PROCESSES]}


def _is_here(other: OtherNode, now_s: float) -> bool:
    return other.answered_s is not None and now_s - other.answered_s < LOST_S


def _report(other: OtherNode) -> Report:
    assert other.report is not None
    return other.report
