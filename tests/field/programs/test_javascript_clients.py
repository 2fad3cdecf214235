"""The official clients for JavaScript read every answer: whole, streamed, calls, errors before and in a stream."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.machine import seconds

from warmroute_lab.fleet import FleetOptions, LocalFleet

from .pages import NODE

CLIENTS = Path(__file__).parent / "clients"
pytestmark = pytest.mark.timeout(seconds(100))
OPTIONS = FleetOptions(speed=50)


def read_by(client: str, fleet: LocalFleet, folder: Path) -> dict[str, Any]:
    """What the client of a dialect has read."""
    assert NODE.exists(), f"{NODE.name} is not there: run scripts/integrations install"
    (folder / "node_modules").symlink_to(NODE / "node_modules")
    program = folder / f"{client}.mjs"
    program.write_text((CLIENTS / program.name).read_text())
    base_url = fleet.proxies["east"].base_url
    address = base_url.removesuffix("/v1")
    urls = {"OPENAI_BASE_URL": base_url, "ANTHROPIC_BASE_URL": address, "GOOGLE_GEMINI_BASE_URL": address}
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), fleet.api_key)
    done = subprocess.run(
        ["node", program.name],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **urls, **keys},
        capture_output=True,
        text=True,
        timeout=seconds(60),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_openais_client_reads_responses(fleet: LocalFleet, tmp_path: Path) -> None:
    found = read_by("responses", fleet, tmp_path)
    assert found["whole"] == ["completed", ["reasoning", "message"], True]
    assert found["stream"] == ["response.created", "response.completed", True]
    calls = [["function_call", '{"path":"a"}'], ["custom_tool_call", "b"]]
    assert [[kind, given.replace(": ", ":")] for kind, given in found["calls"]] == calls
    assert found["streamedCalls"] == found["calls"]
    assert found["errors"] == [
        *[["NotFoundError", 404, "model_not_found"]] * 2,
        *[["BadRequestError", 400, "invalid_value"]] * 2,
    ]
    assert found["failed"] == ["response.failed", "engine_error"]


def test_anthropics_client_reads_messages(fleet: LocalFleet, tmp_path: Path) -> None:
    found = read_by("messages", fleet, tmp_path)
    assert found["whole"] == ["end_turn", ["text"], True]
    assert found["stream"] == ["message_start", "message_stop", True]
    assert found["calls"] == found["streamedCalls"] == [["tool_use", {"path": "a"}]]
    assert found["errors"] == [
        *[["NotFoundError", 404, "not_found_error"]] * 2,
        *[["BadRequestError", 400, "invalid_request_error"]] * 2,
    ]
    assert found["failed"][1] == "api_error"


def test_googles_client_reads_contents(fleet: LocalFleet, tmp_path: Path) -> None:
    found = read_by("gemini", fleet, tmp_path)
    assert found["whole"] == ["STOP", 1, True]
    assert found["stream"] == ["STOP", True, True]
    assert found["thoughts"] == [True, False]
    assert found["counted"] is True
    assert found["errors"] == [*[["ApiError", 404]] * 2, *[["ApiError", 400]] * 2]
