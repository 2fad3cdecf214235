"""A tenant reads its own limits again and again: what that costs does not grow with the other tenants."""

import socket
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess
from warmroute_proxy.core.queue.budget import Budget
from warmroute_proxy.core.queue.quota import Quota, ScopeLimits, TenantLimits
from warmroute_proxy.core.queue.scope import Scope
from warmroute_proxy.core.queue.slots import SlotLimit
from warmroute_proxy.server.admin_endpoint import MAX_VIEWS, AdminEndpoint
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.control.view_routes import MAX_LIMITS, Views
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.stores.budgets import Budgets
from warmroute_proxy.server.stores.leases import SharedSlots
from warmroute_proxy.server.stores.limits import request_limits
from warmroute_proxy.server.stores.limits.request_limits import RequestLimits

TENANTS = 5_000
SECOND = SimpleNamespace(name="t2", key_sha256=("ab" * 32,))
"""One of them."""


def views() -> Views:
    scopes = [Scope(f"t{number}", (f"t{number}",), kind="tenant") for number in range(TENANTS)]
    scopes += [Scope("own", ("t2",)), Scope("of-both", ("t1", "t2")), Scope("others", ("t1",))]
    store = cast("Any", SimpleNamespace())
    budgets = Budgets([Budget(scope, "day", 10, 2.0) for scope in scopes], store, Metrics(), lambda: 0.0)
    slots = SharedSlots([SlotLimit(scope, 3, 2.0) for scope in scopes], store, lambda: 0.0)
    limits = SimpleNamespace(windows=budgets, slots=slots, hold=True)
    config = SimpleNamespace(
        scope_limits=lambda: [ScopeLimits(scope, TenantLimits(requests_per_minute=5)) for scope in scopes]
    )
    stores = SimpleNamespace(budgets=budgets, limits=limits, prices=None)
    made = RequestLimits(cast("Any", config), Metrics(), lambda: 0.0, cast("Any", stores))
    return Views(*cast("Any", (None, None, None, SimpleNamespace(limits=made), None, lambda: 0.0, list)))


def test_a_tenants_view_builds_its_own_limits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Quota] = []
    real = request_limits._quota_dict

    def noted(quota: Quota, now_s: float) -> dict[str, Any]:
        built.append(quota)
        return real(quota, now_s)

    monkeypatch.setattr(request_limits, "_quota_dict", noted)
    found = views().budgets(cast("Any", SECOND), shared=False)
    assert len(built) <= 2
    assert set(found["tenants"]) == {"t2"}
    assert {row["name"] for row in found["budgets"]} == {"t2", "own"}


def test_an_operators_view_of_all_tenants_is_capped_and_says_so() -> None:
    found = views().budgets(None, shared=True)
    assert {len(found["budgets"]), len(found["at_once"]), len(found["tenants"])} == {MAX_LIMITS}
    assert found["left_out"] == 3 * (TENANTS + 3 - MAX_LIMITS)


def test_a_tenant_sees_all_limits_that_are_its_own_and_none_that_others_share() -> None:
    found = views().budgets(cast("Any", SECOND), shared=False)
    assert set(found["limits"]) == {"own"}
    assert {row["name"] for row in found["at_once"]} == {"t2", "own"}
    of_operator = views().budgets(cast("Any", SECOND), shared=True)
    assert set(of_operator["limits"]) == {"own", "of-both"}
    assert {row["name"] for row in of_operator["at_once"]} == {"t2", "own", "of-both"}


def test_so_many_views_of_a_tenant_wait_and_no_more() -> None:
    ends, refused = [], list[Refusal]()
    plane = SimpleNamespace(handle=lambda exchange, extra, done=None: ends.append(done))  # noqa: ARG005
    known = SimpleNamespace(of_head=lambda _request: SimpleNamespace(tenant=SECOND))
    endpoint = AdminEndpoint(lambda _key: False, cast("Any", known), cast("Any", plane))
    request, exchange = (
        Request(0.0, "GET", "/admin/view/budgets", {"authorization": "Bearer k"}),
        cast("Any", SimpleNamespace(refuse=refused.append)),
    )
    for _ in range(MAX_VIEWS + 1):
        endpoint.handle(request, exchange)
    assert (len(ends), [refusal.status for refusal in refused]) == (MAX_VIEWS, [429])
    ends[0]()
    endpoint.handle(request, exchange)
    assert len(ends) == MAX_VIEWS + 1
    AdminEndpoint(lambda _key: True, cast("Any", known), cast("Any", plane)).handle(request, exchange)
    assert ends[-1] is None, "an operator's are not counted"


@pytest.mark.parametrize("framing", ["content-length: 30000000", "transfer-encoding: chunked"])
def test_a_view_with_a_body_is_refused_at_its_head(proxy: ProxyProcess, framing: str) -> None:
    address = urlsplit(str(proxy.line["admin_url"]))
    head = f"GET /admin/view HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {proxy.keys[1]}\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=seconds(20)) as sock:
        sock.sendall(f"{head}{framing}\r\n\r\n".encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 405 "), "nothing of the body was waited for"
    with socket.create_connection((address.hostname, address.port), timeout=seconds(20)) as sock:
        sock.sendall(f"{head}\r\n".encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
