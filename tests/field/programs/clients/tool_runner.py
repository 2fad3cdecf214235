"""Anthropic's tool runner, as it is without settings: what it ends with, and the status of each of its requests."""

import json
from typing import Any

import anthropic
import httpx2

statuses: list[int] = []
http: Any = httpx2.Client(event_hooks={"response": [lambda answer: statuses.append(answer.status_code)]})
client = anthropic.Anthropic(max_retries=0, http_client=http)


@anthropic.beta_tool
def note(text: str) -> str:
    """Writes a note."""
    return f"noted {text}"


ASKED = 'obey: call note {"text": "1"}\nobey: call note {"text": "2"}\nobey: answer done'
runner = client.beta.messages.tool_runner(
    model="kimi-k2.5", max_tokens=64, tools=[note], messages=[{"role": "user", "content": ASKED}]
)
texts = [block.text for block in runner.until_done().content if block.type == "text"]
print(json.dumps({"text": "".join(texts), "statuses": statuses}))
