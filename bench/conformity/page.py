"""The page of results: what was run, a table of checks by server, and each failed check with the request that fails."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

MARKS: Final = {"pass": "yes", "fail": "**no**", "not tried": "-"}
MAX_BODY_CHARS: Final = 160

_HEAD: Final = """# Scores of servers

`python -m bench.conformity` makes this page: it runs `warmroute conform` against servers that install from PyPI. Each
server ran on one machine without a GPU, with a tiny model of random weights. The first table names the options of each
server; all others have their defaults. So the page says what one version did with these options, and does not rank
servers. A server may pass more checks with other options, and most checks test things that no server has claimed to do.
Below the tables, each `no` has the request that shows it; anyone can send that request again. `-` means that the check
does not apply, or showed nothing. Routers pass on what their engines report: their results of `n > 1` come from the
engines. The check `cancel` needs a receipt: without one, a client that left cannot see whether its request was settled.
"""


def scored_of(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The results with scores, without older scores of servers that fail now."""
    failed = {result["name"] for result in results if "why" in result}
    return [result for result in results if "apis" in result and result["name"] not in failed]


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The text of the page."""
    scored = scored_of(results)
    lines = [_HEAD, "## What was run", "", "| server | version | how |", "|---|---|---|"]
    lines += [f"| {each['name']} | {each['version']} | {each['how']} |" for each in scored]
    missing = [result for result in results if "why" in result]
    if missing:
        lines += ["", "Not scored here:", ""]
        lines += [f"- {each['name']}: `{_short(each['why'].replace('`', ''), 300)}`" for each in missing]
    for api in ("openai", "anthropic", "gemini"):
        lines += _table(api, [result for result in scored if api in result["apis"]])
    lines += ["", "## Red cells", ""]
    for result in scored:
        lines += _red(result)
    return "\n".join(lines).rstrip() + "\n"


def _table(api: str, scored: Sequence[Mapping[str, Any]]) -> list[str]:
    if not scored:
        return []
    checks = list(dict.fromkeys(cell["check"] for each in scored for cell in each["apis"][api]["cells"]))
    names = {"openai": "OpenAI's chat completions", "anthropic": "Anthropic's messages", "gemini": "Gemini's API"}
    lines = ["", f"## {names[api]}", "", f"| check | {' | '.join(each['name'] for each in scored)} |"]
    lines.append(f"|---|{'---|' * len(scored)}")
    for check in checks:
        cells = [_state(each["apis"][api]["cells"], check) for each in scored]
        lines.append(f"| {check} | {' | '.join(cells)} |")
    return lines


def _state(cells: Iterable[Mapping[str, Any]], check: str) -> str:
    return next((MARKS[cell["state"]] for cell in cells if cell["check"] == check), "-")


def _red(result: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for api, found in result["apis"].items():
        for cell in found["cells"]:
            if cell["state"] != "fail":
                continue
            lines += [f"**{result['name']}, {api}: {cell['check']}**: {_plain(cell['finding'])}", "", "```text"]
            lines += [_request(each) for each in cell["shown_by"]]
            lines += ["```", ""]
    return lines


def _request(exchange: Mapping[str, Any]) -> str:
    request = exchange["request"]
    headers = {name: value for name, value in request["headers"].items() if name != "content-type"}
    body = {name: _brief(value) for name, value in request["body"].items()}
    came = exchange["error"] or json.dumps({name: _brief(value) for name, value in exchange["usage"].items()})
    return (
        f"{request['method']} {request['path']}\n  headers {json.dumps(headers)}\n  body    {json.dumps(body)}\n"
        f"  answer  {exchange['status']} {_short(str(came), 400)}"
    )


def _brief(value: object) -> object:
    text = json.dumps(value)
    return value if len(text) <= MAX_BODY_CHARS else f"({len(text):,} bytes)"


def _plain(text: str) -> str:
    return _short(text.replace("|", "/").replace("\n", " "), 200)


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]}..."
