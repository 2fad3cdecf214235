"""Reads LiteLLM's spend logs: rows of the table `LiteLLM_SpendLogs`, one JSON object a line.

The columns are those of `SpendLogsPayload` (BerriAI/litellm, litellm/proxy/_types.py, 1.108). Cached tokens are in
`metadata.usage_object`, which LiteLLM writes as text. With `store_prompts_in_spend_logs`, `proxy_server_request` has
the prompt; older versions have it in `messages`. `spend` is in USD. The rows do not have `delivered` or `predicted`.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from warmroute.contract.usage import counts_of
from warmroute_proxy.ladder.of_reports import Report
from warmroute_proxy.ladder.readers.lines import count_of, json_object, nanousd_of, pieces_of, text_of


def is_litellm(row: dict[str, Any]) -> bool:
    return "spend" in row and "prompt_tokens" in row


class LiteLLM:
    """Reads rows of requests that succeeded. `failed`: the number of other rows; `failed_nanousd`: their cost."""

    def __init__(self) -> None:
        self.skipped = 0
        self.failed = 0
        self.failed_nanousd = 0

    def reports(self, lines: Iterable[bytes]) -> Iterator[Report]:
        for line in lines:
            row = json_object(line)
            prompt = None if row is None else count_of(row.get("prompt_tokens"))
            if row is not None and is_litellm(row) and row.get("status", "success") != "success":
                self.failed += 1
                self.failed_nanousd += nanousd_of(row.get("spend")) or 0
                continue
            if row is None or prompt is None:
                self.skipped += bool(line.strip())
                continue
            yield _report(row, prompt)


def _report(row: dict[str, Any], prompt: int) -> Report:
    metadata = _object(row.get("metadata"))
    usage = _object(metadata.get("usage_object"))
    return Report(
        prompt_tokens=prompt,
        completion_tokens=count_of(row.get("completion_tokens")) or 0,
        reported=counts_of(usage).cached,
        cost_nanousd=nanousd_of(row.get("spend")),
        units=_units(row.get("messages")) or _units(_object(row.get("proxy_server_request")).get("messages")),
        worker=text_of(row.get("model_id")),
        keys={
            "session": text_of(row.get("session_id")),
            "tenant": text_of(row.get("team_id")) or text_of(row.get("user")) or text_of(row.get("api_key"))[:16],
            "model": text_of(row.get("model_group")) or text_of(row.get("model")),
            "harness": _harness(metadata, row),
            "day": text_of(row.get("startTime"))[:10],
        },
    )


def _harness(metadata: dict[str, Any], row: dict[str, Any]) -> str:
    tags = row.get("request_tags")
    found = _list(tags) if isinstance(tags, str) else tags
    for tag in found if isinstance(found, list) else ():
        if isinstance(tag, str) and tag.startswith("User-Agent: ") and "/" not in tag:
            return tag.removeprefix("User-Agent: ")[:64]
    return text_of(metadata.get("user_agent")).partition("/")[0]


def _units(messages: object) -> list[int | str] | None:
    if isinstance(messages, str):
        messages = _list(messages)
    if not isinstance(messages, list) or not messages:
        return None
    return pieces_of("".join(json.dumps(message, sort_keys=True) for message in messages))


def _list(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _object(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
