"""The proxy against its own OpenAPI description: whatever is asked, it answers as described and never fails.

schemathesis makes requests from `/openapi.json`, sound and unsound ones, and compares status, content type and shape of
each answer with what is described.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.subjects.processes import EngineProcess, ProxyProcess

from warmroute_cli.processes import stop_all
from warmroute_proxy.server.control.control_plane import described_routes

pytestmark = pytest.mark.nightly

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ENOUGH_TOKENS = 4_000
"""The engine's context: an answer of any length that is asked for ends soon."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("openapi")
    options = ("--context-length", str(ENOUGH_TOKENS))
    engine = EngineProcess(folder, "e", "aggregated", *options, speed=1_000).listening()
    started = ProxyProcess(folder, [engine.toml("east")]).start()
    yield started
    started.stop()
    stop_all([engine.child], 5.0)


@pytest.fixture(scope="module")
def api(proxy: ProxyProcess) -> Any:
    """The description, as schemathesis reads it."""
    return schemathesis.openapi.from_url(f"{proxy.url}/openapi.json")


def questions() -> list[tuple[str, str, GenerationMode]]:
    """Each operation with sound requests, and with unsound ones where a request can be that."""
    found = []
    for path, item in described_routes()["paths"].items():
        if path.startswith(("/admin/", "/metrics")):  # tests/stores asks these, with a database
            continue
        for method, operation in item.items():
            found.append((path, method, GenerationMode.POSITIVE))
            if "requestBody" in operation:
                found.append((path, method, GenerationMode.NEGATIVE))
    return found


@pytest.mark.parametrize(("path", "method", "mode"), questions())
def test_every_answer_is_as_described(
    proxy: ProxyProcess, api: Any, path: str, method: str, mode: GenerationMode
) -> None:
    @settings(max_examples=25 if method == "post" else 3, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        case.call_and_validate(headers={"authorization": f"Bearer {proxy.keys[0]}"}, checks=CHECKS)

    ask()
