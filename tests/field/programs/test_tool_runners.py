"""Anthropic's tool runners ask for a thread, which is refused in the form that makes them send whole conversations."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.machine import seconds

from warmroute_lab.fleet import FleetOptions, LocalFleet

from .pages import FRAMEWORKS, NODE, QUIET, ROOT

CLIENTS = Path(__file__).parent / "clients"
pytestmark = pytest.mark.timeout(seconds(100))
OPTIONS = FleetOptions(speed=50, obey_prompts=True)


@pytest.mark.parametrize("language", ["py", "mjs"])
def test_a_tool_runner_goes_on_without_a_thread(fleet: LocalFleet, tmp_path: Path, language: str) -> None:
    program = tmp_path / f"tool_runner.{language}"
    program.write_text((CLIENTS / program.name).read_text())
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    runs = "node" if language == "mjs" else str(ROOT / FRAMEWORKS / "bin" / "python")
    address = fleet.proxies["east"].base_url.removesuffix("/v1")
    environment = {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": fleet.api_key, "HOME": str(tmp_path)}
    done = subprocess.run(
        [runs, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=seconds(60), check=False,
        env={**os.environ, **QUIET, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"text": "done", "statuses": [400, 200, 200, 200]}
