"""Claude Code searches for deferred tools, also for one that its server of tools gets while the session runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.machine import seconds

from warmroute_lab.fleet import FleetOptions, LocalFleet

from .pages import NODE, QUIET

SERVER = Path(__file__).parent / "clients" / "late_tools.py"
pytestmark = pytest.mark.timeout(seconds(150))
OPTIONS = FleetOptions(speed=50, obey_prompts=True)


def call(tool: str, **arguments: Any) -> str:
    return f"obey: call {tool} {json.dumps(arguments)}"


def test_tools_that_are_found_are_called(fleet: LocalFleet, tmp_path: Path) -> None:
    servers = {"mcpServers": {"late": {"command": sys.executable, "args": [str(SERVER)]}}}
    (tmp_path / "servers.json").write_text(json.dumps(servers))
    prompt = "\n".join(
        [
            "Please work.",
            call("ToolSearch", query="select:mcp__late__first", max_results=5),
            call("mcp__late__first", text="a"),
            call("Bash", command="sleep 1", description="waits"),
            call("ToolSearch", query="select:mcp__late__second", max_results=5),
            call("mcp__late__second", text="b"),
            "obey: answer All is done.",
        ]
    )
    command = [
        str(NODE / "node_modules" / ".bin" / "claude"), "--dangerously-skip-permissions", "--mcp-config",
        "servers.json", "--output-format", "stream-json", "--verbose", "-p", prompt,
    ]  # fmt: skip
    settings = {
        "ANTHROPIC_BASE_URL": fleet.proxies["east"].base_url.removesuffix("/v1"), "ANTHROPIC_AUTH_TOKEN": fleet.api_key,
        "ANTHROPIC_MODEL": "claude-sonnet-4-5", "ENABLE_TOOL_SEARCH": "true", "HOME": str(tmp_path), "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=seconds(100), check=False, input="",
        env={**os.environ, **QUIET, **settings},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    results = [
        block["content"]
        for each in told
        if each["type"] == "user"
        for block in each["message"]["content"]
        if block["type"] == "tool_result" and isinstance(block["content"], list)
    ]
    assert results == [
        [{"type": "tool_reference", "tool_name": "mcp__late__first"}],
        [{"type": "text", "text": "noted by first"}],
        [{"type": "tool_reference", "tool_name": "mcp__late__second"}],
        [{"type": "text", "text": "noted by second"}],
    ]
    assert (told[-1]["type"], told[-1]["result"]) == ("result", "All is done.")
