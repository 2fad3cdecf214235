"""Tenants, keys and the audit log by the admin API, as `/openapi.json` describes it."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from tests.field.fuzz.test_openapi import CHECKS
from tests.subjects.processes import PLAIN
from warmroute_proxy.server.control.control_plane import described_routes

from .operating import ENGINE, Operator, WithoutEngines

METHODS = ("get", "post", "patch", "delete")


def test_a_tenant_and_its_key_from_beginning_to_end(operator: Operator) -> None:
    status, tenant = operator.ask("POST", "/admin/tenants", {"name": "team/a", "settings": {"share_group": "team"}})
    assert (status, tenant["source"], tenant["settings"]["share_group"]) == (201, "database", "team")
    status, made = operator.ask("POST", "/admin/keys", {"tenant": "team/a", "note": "ci"})
    assert status == 201
    operator.until_all(made["key"], 200)
    status, key = operator.ask("PATCH", f"/admin/keys/{made['id']}", {"note": "nightly", "lifetime_s": 86_400})
    assert (status, key["note"], key["state"], key["expires_at"] is None) == (200, "nightly", "good", False)
    status, second = operator.ask("POST", f"/admin/keys/{made['id']}/rotate", {"overlap_s": 0})
    assert status == 201
    operator.until_all(second["key"], 200)
    operator.until_all(made["key"], 401)
    status, changed = operator.ask("PATCH", "/admin/tenants/team%2Fa", {"settings": {"requests_at_once": 2}})
    assert (status, changed["settings"]["requests_at_once"]) == (200, 2)
    assert operator.ask("DELETE", "/admin/tenants/team%2Fa", proxy=1)[1]["keys_revoked"] == 1
    operator.until_all(second["key"], 401)
    status, audit = operator.ask("GET", "/admin/audit?since=1h")
    assert [f"{row['kind']} {row['action']}" for row in audit["data"][::-1]] == [
        "tenant add", "key make", "key change", "key make", "key rotate", "tenant change", "key revoke",
        "tenant remove",
    ]  # fmt: skip
    assert {row["who"] for row in audit["data"]} == {"admin@east"}
    assert audit["data"][2]["new"] == {"requests_at_once": 2}
    assert made["key"] not in str(audit)


def test_a_tenant_of_the_database_sees_its_own_keys_on_the_page_until_its_key_is_revoked(operator: Operator) -> None:
    def view(key: str, path: str) -> httpx.Response:
        url = f"{operator.proxies[0].line['admin_url']}/admin/view{path}"
        return httpx.get(url, headers={"authorization": f"Bearer {key}"}, verify=PLAIN)

    for name in ("viewer", "other"):
        operator.ask("POST", "/admin/tenants", {"name": name})
    _, made = operator.ask("POST", "/admin/keys", {"tenant": "viewer", "note": "ci"})
    operator.ask("POST", "/admin/keys", {"tenant": "other"})
    operator.until_all(made["key"], 200)
    assert view(made["key"], "").json()["tenant"] == "viewer"
    found = view(made["key"], "/keys")
    assert [(key["id"], key["note"], key["source"]) for key in found.json()["data"]] == [(made["id"], "ci", "database")]
    assert made["key"] not in found.text
    assert view(made["key"], "/keys?tenant=other").status_code == 403
    _, all_keys = operator.ask("GET", "/admin/view/keys")
    assert {"viewer", "other", "first", "second"} <= {key["tenant"] for key in all_keys["data"]}
    operator.ask("DELETE", f"/admin/keys/{made['id']}")
    operator.until_all(made["key"], 401)
    assert view(made["key"], "").status_code == 401
    for name in ("viewer", "other"):
        operator.ask("DELETE", f"/admin/tenants/{name}")


def test_lists_come_in_pages(operator: Operator) -> None:
    names = [f"page-{number}" for number in range(5)]
    operator.ask("POST", "/admin/tenants", {"name": "Zone"})
    for name in names:
        operator.ask("POST", "/admin/tenants", {"name": name})
        operator.ask("POST", "/admin/keys", {"tenant": name})
    found: list[str] = []
    after = ""
    while True:
        _, page = operator.ask("GET", f"/admin/tenants?limit=3{after}")
        found += [row["name"] for row in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={found[-1]}"
    assert found == ["Zone", "first", *names, "second"]
    _, newest = operator.ask("GET", "/admin/keys?limit=2")
    assert [row["tenant"] for row in newest["data"]] == names[:2:-1]
    _, older = operator.ask("GET", f"/admin/keys?limit=200&after={newest['data'][-1]['id']}")
    assert [row["tenant"] for row in older["data"]][:3] == names[2::-1]
    _, audit = operator.ask("GET", "/admin/audit?limit=1&kind=tenant")
    _, before = operator.ask("GET", f"/admin/audit?limit=1&kind=tenant&before={audit['data'][0]['id']}")
    assert [row["data"][0]["subject"] for row in (audit, before)] == ["page-4", "page-3"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/admin/tenants", {"name": "first"}, 409, "conflict"),
        ("POST", "/admin/tenants", {"name": "x'; DROP TABLE tenant; --"}, 400, "invalid_value"),
        ("POST", "/admin/tenants", {"name": "x" * 129}, 400, "invalid_value"),
        ("POST", "/admin/tenants", {"name": "a\u0000b"}, 400, "invalid_value"),
        ("POST", "/admin/tenants", {"nome": "a"}, 400, "invalid_value"),
        ("POST", "/admin/tenants", {"name": "a", "settings": {"models": ["no-such"]}}, 400, "invalid_value"),
        ("POST", "/admin/tenants", {"name": "a", "settings": {"models": ["*"] * 70_000}}, 400, "invalid_value"),
        ("PATCH", "/admin/tenants/nobody", {"settings": {}}, 404, "not_found"),
        ("DELETE", "/admin/tenants/first", None, 404, "not_found"),
        ("POST", "/admin/keys", {"tenant": "nobody"}, 404, "not_found"),
        ("POST", "/admin/keys", {"tenant": "first", "lifetime_s": 1e300}, 400, "invalid_value"),
        ("DELETE", "/admin/keys/k-0000000000", None, 404, "not_found"),
        ("GET", "/admin/keys?limit=201", None, 400, "invalid_value"),
        ("GET", "/admin/keys?after=k'--", None, 400, "invalid_value"),
        ("GET", "/admin/tenants?page=2", None, 400, "unknown_parameter"),
        ("GET", "/admin/audit?kind=secret", None, 400, "invalid_value"),
    ],
)
def test_what_cannot_be_done_is_said(
    operator: Operator, method: str, path: str, body: Any, status: int, code: str
) -> None:
    found, answer = operator.ask(method, path, body)
    assert (found, answer["error"]["code"]) == (status, code)


def test_without_the_admin_key_nothing_is_answered(operator: Operator) -> None:
    url = operator.proxies[0].line["admin_url"]
    key = operator.proxies[0].keys[1]
    found = httpx.get(f"{url}/admin/keys", headers={"authorization": f"Bearer {key}"}, verify=PLAIN)
    assert found.status_code == 401


def test_a_proxy_without_a_database_says_so(tmp_path: Path) -> None:
    with WithoutEngines(tmp_path, [ENGINE]) as proxy:
        with proxy.admin() as admin:
            found = admin.post("/admin/tenants", json={"name": "a"})
        assert (found.status_code, found.json()["error"]["code"]) == (404, "no_database")


DESCRIBED = described_routes()["paths"]
PATHS = [path for path in DESCRIBED if path.startswith(("/admin/tenants", "/admin/keys", "/admin/audit"))]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_as_described(operator: Operator, path: str) -> None:
    proxy = operator.proxies[0]
    api = schemathesis.openapi.from_url(f"{proxy.url}/openapi.json")
    headers = {"authorization": f"Bearer {proxy.admin_key}"}

    for method in METHODS:
        if method not in DESCRIBED[path]:
            continue
        modes = list(GenerationMode) if method in {"post", "patch"} else [GenerationMode.POSITIVE]
        for mode in modes:

            @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
            @given(case=api[path][method].as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                case.call_and_validate(base_url=proxy.line["admin_url"], headers=headers, checks=CHECKS)

            ask()
