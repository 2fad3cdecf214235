"""A request that ends the process that serves it: two engines at most, and no other tenant's request."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.subjects.processes import until
from tests.subjects.request_scene import Scene
from warmroute_proxy.core.load.blame import Cause
from warmroute_proxy.core.load.suspects import REFUSED_S
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.request.failure import Failure
from warmroute_proxy.server.request.faults import Faults
from warmroute_proxy.server.request.open_requests import OpenRequests
from warmroute_proxy.server.request.request_metrics import RequestMetrics

from .conftest import HOSTILE, INNOCENT, MakePlace

KILLER = "this ends a process"


def test_a_killer_meets_two_engines_and_is_then_refused(make_place: MakePlace) -> None:
    place = make_place(3)
    place.order(fault="crash", count=100, after_events=0, containing=KILLER)
    began_s = time.monotonic()
    assert place.ask(HOSTILE, KILLER).status_code == 502
    until(lambda: len(place.living()) == 1, "two engines have ended")
    for _ in range(3):
        answer = place.ask(HOSTILE, KILLER)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_ends_engines")
        assert REFUSED_S - (time.monotonic() - began_s) <= int(answer.headers["retry-after"]) <= REFUSED_S + 1
        assert place.ask(INNOCENT, "hello").status_code == 200
    assert len(place.living()) == 1
    assert place.proxy.metric('warmroute_suspects_total{outcome="refused"}') == 3
    assert "tenant second" in place.log()
    assert KILLER not in place.log()


def test_a_request_with_a_granted_field_is_not_tried_again(make_place: MakePlace) -> None:
    place = make_place(2, second='granted_fields = ["regex"]')
    place.order(fault="crash", count=100, after_events=0, containing=KILLER)
    assert place.ask(HOSTILE, KILLER, regex="a+").status_code == 502
    until(lambda: len(place.living()) == 1, "one engine has ended")
    assert place.ask(INNOCENT, "hello").status_code == 200
    assert len(place.living()) == 1


@pytest.mark.uncompiled
def test_a_queued_copy_of_a_killer_is_refused_when_its_turn_comes() -> None:
    scene = Scene()
    scene.begin("queue")
    for engine in ("e0", "e1"):
        _broke(scene.faults, scene.request.parsed, engine)
    scene.admit()
    assert scene.client.ended
    assert not scene.engines.by_id["aggregated"].upstream.legs


@pytest.mark.uncompiled
def test_a_queued_suspect_is_not_placed_beside_another_tenants() -> None:
    scene, other = Scene(), _intake("other")
    scene.begin("queue")
    for parsed in (scene.request.parsed, other):
        _broke(scene.faults, parsed, "e0")
    assert scene.request.excluded == frozenset()
    scene.faults.dispatched(other, _ticket(*scene.engines.workers()), scene.now)
    assert scene.request.excluded == {"aggregated"}


def test_suspects_of_two_tenants_are_not_tried_again_on_one_engine() -> None:
    faults, parser = _faults(), {name: _intake(name) for name in ("innocent", "hostile")}
    for parsed in parser.values():
        assert _broke(faults, parsed, "e0")
    assert faults.closed_to(parser["hostile"], 0.0) == frozenset()
    ticket = _ticket("e1")
    faults.dispatched(parser["innocent"], ticket, 0.0)
    assert faults.closed_to(parser["hostile"], 0.0) == {"e1"}
    assert faults.closed_to(_intake("third"), 0.0) == frozenset()  # no suspect: it may be at risk, but is none
    ticket.computed = True
    assert faults.closed_to(parser["hostile"], 0.0) == frozenset()


def test_copies_that_one_end_met_are_all_tried_again_on_one_engine() -> None:
    faults, copies = _faults(), [_intake("second") for _ in range(3)]
    assert [_broke(faults, copy, "e0") for copy in copies] == [True] * 3
    assert faults.refusal(copies[0], 1.0) is None
    ticket = _ticket("e1")
    faults.dispatched(copies[0], ticket, 0.0)
    assert faults.closed_to(copies[1], 0.0) == {"e0", "e2"}
    ticket.open = False
    assert faults.closed_to(copies[1], 0.0) == frozenset()
    assert [_broke(faults, copy, "e1") for copy in copies] == [False] * 3
    assert faults.refusal(copies[0], 1.0) is not None


def _broke(faults: Faults, parsed: Any, engine: str) -> bool:
    """An engine goes away at 1 s, which was sent the request at 0 s. Returns whether the request may be retried."""
    broken = Failure(Refusal(502, "broke"), (engine,), True, cause=Cause.BROKEN)
    decision: Any = SimpleNamespace(workers=[SimpleNamespace(id=engine, engine=engine)])
    return faults.judge(parsed, broken, decision, 0.0, 1.0, had_token=False).may_retry


def _ticket(*workers: Any) -> Any:
    return SimpleNamespace(open=True, computed=False, decision=SimpleNamespace(workers=workers))


def test_a_request_that_no_engine_answers_in_http_leaves_no_evidence_at_any_rank() -> None:
    """An answer that is not HTTP is evidence against all ranks of its engine."""
    faults = _faults(engine_of=lambda worker: worker.split(":")[0])
    decision: Any = SimpleNamespace(workers=())
    at_fault = [
        faults.judge(
            _intake(tenant), Failure(Refusal(502, "not HTTP"), ranks, True), decision, 0.0, 0.0, had_token=False
        ).at_fault
        for tenant, ranks in [("hostile", ("e:0", "e:1")), ("hostile", ("f:0", "f:1")), ("innocent", ("f:0", "f:1"))]
    ]
    assert at_fault == [(), (), ()]


def _intake(tenant: str) -> Any:
    routing = SimpleNamespace(model="m", chain=SimpleNamespace(hashes=[1]))
    return SimpleNamespace(tenant=SimpleNamespace(name=tenant), routing=routing, bounded=True)


def _faults(engine_of: Callable[[str], str] = str) -> Faults:
    """Of three engines; each has one rank, which has its name."""
    ranks = {name: SimpleNamespace(id=name) for name in ("e0", "e1", "e2")}
    engines: Any = SimpleNamespace(of=lambda worker: SimpleNamespace(workers=lambda: [ranks[worker]]),
                                   workers=lambda: list(ranks.values()))  # fmt: skip
    router: Any = SimpleNamespace(
        are_only_usable=lambda *_: False, engine_of=engine_of, ranks_beside=frozenset,
        fleet=SimpleNamespace(workers=ranks),
    )  # fmt: skip
    return Faults(router, engines, OpenRequests(), RequestMetrics(Metrics()))
