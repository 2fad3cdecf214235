"""The OpenAPI document: made once however many ask, and as the routes answer."""

import asyncio
import re
from typing import Any, cast

import httpx
import pytest
from starlette.routing import Match

from warmroute_proxy.server.control import control_plane
from warmroute_proxy.server.control.control_plane import PublicParts, described_routes, public_app
from warmroute_proxy.server.dialects.routes import APIS

NOTHING: Any = None
PATHS: dict[str, Any] = described_routes()["paths"]
ADMIN = [(path, method) for path in PATHS if path.startswith("/admin") for method in PATHS[path] if method != "servers"]
ADMIN_ROUTES: Any = control_plane.admin_app(control_plane.AdminParts(*[cast("Any", object())] * 11), {}).routes


async def test_all_that_ask_at_once_get_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def counted() -> dict[str, Any]:
        made.append({"paths": PATHS})
        return made[-1]

    monkeypatch.setattr(control_plane, "described_routes", counted)
    transport = httpx.ASGITransport(public_app(PublicParts(*[NOTHING] * 6)))
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
        gone = asyncio.create_task(client.get("/openapi.json"))
        while not made:  # the first client leaves while the document is made
            await asyncio.sleep(0)
        gone.cancel()
        answers = await asyncio.gather(*(client.get("/openapi.json") for _ in range(16)))
        later = await client.get("/openapi.json")
    assert len(made) == 1
    assert {answer.content for answer in answers} == {later.content}
    assert later.json() == made[0]
    assert later.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("path", "method"), ADMIN)
def test_operators_routes_say_what_any_request_can_get(path: str, method: str) -> None:
    said = set(PATHS[path][method]["responses"])
    assert {"400", "401", "404", "405", "408", "413", "414", "431", "500", "503"} <= said


@pytest.mark.parametrize(("path", "method"), ADMIN)
def test_a_name_with_a_slash_leads_to_the_route(path: str, method: str) -> None:
    given = {each: "rack1/gpu0" for each in ("engine_id", "name") if f"{{{each}}}" in path}
    scope = {"type": "http", "method": method.upper(), "path": re.sub(r"\{\w+\}", "rack1/gpu0" if given else "x", path)}
    matches = [(route.path_format, route.matches(scope)) for route in ADMIN_ROUTES]
    found, (_, matched) = next(each for each in matches if each[1][0] is Match.FULL)
    assert found == path
    assert matched["path_params"].items() >= given.items()


@pytest.mark.parametrize("path", [path for api in APIS for path in {api.route: None, **dict.fromkeys(api.paths)}])
def test_each_path_of_an_api_is_described(path: str) -> None:
    assert "post" in PATHS[path]


def test_metrics_are_text() -> None:
    operation = PATHS["/metrics"]["get"]
    assert set(operation["responses"]["200"]["content"]) == {"text/plain", "application/openmetrics-text"}
    assert {"413", "414", "431"} <= set(operation["responses"])
