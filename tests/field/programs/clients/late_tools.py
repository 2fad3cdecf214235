"""A server of tools (MCP, by standard input and output) that has one more tool once its first one was called."""

import json
import sys
from typing import Any

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
INFO = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "late", "version": "1"}}
tools = [{"name": "first", "description": "Writes a first note.", "inputSchema": SCHEMA}]


def say(**members: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **members}), flush=True)


for line in sys.stdin:
    asked = json.loads(line)
    method = asked["method"]
    if "id" not in asked:
        continue
    found: dict[str, Any] = {}
    if method == "initialize":
        found = {**INFO, "protocolVersion": asked["params"]["protocolVersion"]}
    elif method == "tools/list":
        found = {"tools": tools}
    elif method == "tools/call":
        found = {"content": [{"type": "text", "text": f"noted by {asked['params']['name']}"}]}
        if len(tools) == 1:
            tools.append({"name": "second", "description": "Writes a second note.", "inputSchema": SCHEMA})
            say(method="notifications/tools/list_changed")
    say(id=asked["id"], result=found)
