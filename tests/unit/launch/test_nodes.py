"""When the launchers of several nodes start, and what they say of each other, on virtual time."""

from dataclasses import asdict, replace

import pytest

from warmroute_backend.launch.nodes import (
    LOST_S,
    OtherNode,
    Report,
    may_start,
    observed,
    read_report,
    stores_serve,
    trouble,
)

OWN = Report(0, "abc", goes=False)
OTHERS = (OtherNode(1, "host-1"), OtherNode(2, "host-2"))


def answered(at_s: float, **changes: object) -> list[OtherNode]:
    """Both others, the first of which has what is changed."""
    reports = [Report(other.node, "abc", goes=False, states={"decode-0": "ready"}) for other in OTHERS]
    reports[0] = replace(reports[0], **changes)  # type: ignore[arg-type]
    return [observed(other, report, at_s) for other, report in zip(OTHERS, reports, strict=True)]


def test_one_order_starts_all_once_all_answer() -> None:
    goes = replace(OWN, goes=True)
    assert not may_start(goes, OTHERS, 0.0)
    assert not may_start(goes, [answered(0.0)[0], OTHERS[1]], 0.0)
    assert may_start(goes, answered(0.0), 1.0)
    assert may_start(OWN, answered(0.0, goes=True), 1.0)
    assert not may_start(OWN, answered(0.0), 1.0), "no one was told to"


def test_another_plan_or_a_lost_node_starts_nothing() -> None:
    goes = replace(OWN, goes=True)
    assert not may_start(goes, answered(0.0, plan="old"), 1.0)
    assert not may_start(goes, answered(0.0), LOST_S)


def test_what_is_wrong_with_a_node_is_named() -> None:
    first = answered(0.0)[0]
    assert trouble(OWN, OTHERS[0], 0.0) == "node 1 (host-1): no launcher has answered yet"
    assert trouble(OWN, first, 1.0) == ""
    assert trouble(OWN, first, 20.0) == "node 1 (host-1) is lost: its launcher has not answered for 20 s"
    assert trouble(OWN, observed(first, None, 20.0), 20.0).startswith("node 1 (host-1) is lost")
    assert trouble(OWN, answered(0.0, plan="old")[0], 1.0) == "node 1 (host-1) has another plan.toml"
    down = answered(0.0, states={"decode-0": "failed", "decode-1": "ready"})[0]
    assert trouble(OWN, down, 1.0) == "node 1 (host-1): decode-0 is failed"


def test_engines_wait_for_stores_of_other_nodes() -> None:
    assert stores_serve(answered(0.0))
    assert not stores_serve(answered(0.0, stores={"mooncake-master": "starting"}))
    assert stores_serve(answered(0.0, stores={"mooncake-master": "ready"}))


@pytest.mark.parametrize(
    "found", [{}, {"node": 2}, {"node": 1, "states": []}, {"node": 1, "states": {}, "stores": None}]
)
def test_what_is_no_report_is_none(found: dict[str, object]) -> None:
    assert read_report(found, 1) is None


def test_a_report_is_read_as_it_was_written() -> None:
    report = Report(1, "abc", goes=True, states={"decode-0": "ready"}, stores={"mooncake-master": "ready"})
    assert read_report(asdict(report), 1) == report
