"""Codex under the name of a model that it knows, with `openai_base_url`, has the server sum up its conversation."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.machine import seconds

from warmroute_lab.fleet import FleetOptions, LocalFleet

from .pages import NODE, QUIET

pytestmark = pytest.mark.timeout(seconds(150))
OPTIONS = FleetOptions(speed=50, obey_prompts=True)


def call(command: str) -> str:
    return f"obey: call exec_command {json.dumps({'cmd': command})}"


@pytest.mark.parametrize("model", ["gpt-5.1-codex", "gpt-5.5"])
def test_codex_goes_on_from_its_summary(fleet: LocalFleet, tmp_path: Path, model: str) -> None:
    project, home = tmp_path / "project", tmp_path / "codex"
    project.mkdir()
    home.mkdir()
    (project / "big.txt").write_text("".join(f"{number}\n" for number in range(3000)))
    base_url = fleet.proxies["east"].base_url
    settings = [
        f'model = "{model}"', f'openai_base_url = "{base_url}"', "check_for_update_on_startup = false",
        "model_auto_compact_token_limit = 10500",
    ]  # fmt: skip
    (home / "config.toml").write_text("\n".join(settings) + "\n")
    (home / "auth.json").write_text(json.dumps({"auth_mode": "apikey", "OPENAI_API_KEY": fleet.api_key}))
    summary = f"{call('echo after the summary')}\nobey: answer It ends."
    prompt = f"Please work.\n{call('cat big.txt')}\nobey: answer {json.dumps(summary)}"
    command = [
        str(NODE / "node_modules" / ".bin" / "codex"), "exec", "--json", "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox", prompt,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=seconds(100), check=False, input="",
        env={**os.environ, **QUIET, "CODEX_HOME": str(home), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    items = [event["item"] for event in map(json.loads, done.stdout.splitlines()) if event["type"] == "item.completed"]
    commands = [item["aggregated_output"].strip() for item in items if item["type"] == "command_execution"]
    assert len(commands) == 2
    assert commands[1] == "after the summary"
    assert [item["text"] for item in items if item["type"] == "agent_message"][-1] == "It ends."
