"""A case of `cases/`: a folder of files that a person can read, and what is the same in each run made the same text.

    why.txt         what the case is for, and the report
    request.json    what the client asks; `stream` is set by what is played
    chunks.txt      what an engine streams, as its bytes; answer.json: what it answers as a whole
    elsewhere.txt, elsewhere.json   what another engine answers, where the first answer is no answer
    events.txt, reply.json          what the client gets
    charge.json     how the request ended, and what was counted, estimated and charged
    setup.json      what is unusual: the engine's `kind`, lines of its table (`engine`) or of the model's (`model`), or
                    the text of the answer at which the client leaves (`leaves_at`)

A first line such as `HTTP 429 application/json | retry-after: 7` names what is no 200 of the usual media type.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.apis.played import Answered, Said

CASES: Final = Path(__file__).parent / "cases"
EVENTS: Final = "text/event-stream"
JSON: Final = "application/json"

PATHS: Final = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/m:generateContent",
}
"""The path of each API; in Gemini's, of the model `m`."""

_HEAD: Final = re.compile(rb"HTTP (\d+) ?([^|\n]*?)(?: \| ([^\n]*))?\n")
_EVENT_END: Final = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)|(?<=\r\r)(?!\n)")
_RECEIPT: Final = re.compile(r"wr-([0-9a-f]{24})")
_MADE: Final = re.compile(r"call_[0-9a-f]{16}_")
_TIMES: Final = re.compile(r'("created(?:_at)?": ?)1\d{9}\b')
_COST: Final = re.compile(r'"cost": ?[0-9.e-]+,"warmroute": ?')
_KEPT_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry")


@dataclass(frozen=True)
class Run:
    """A case, played as a stream or as a whole."""

    folder: Path
    stream: bool

    @property
    def api(self) -> str:
        return self.folder.parent.name

    @property
    def setup(self) -> dict[str, Any]:
        found: dict[str, Any] = _json(self.folder / "setup.json") or {}
        return found

    @property
    def expected(self) -> Path:
        return self.folder / ("events.txt" if self.stream else "reply.json")

    def request(self) -> tuple[str, bytes]:
        """The path, and the body."""
        asked = _json(self.folder / "request.json")
        path = PATHS[self.api]
        if self.api == "gemini":
            method = "streamGenerateContent?alt=sse" if self.stream else "generateContent"
            return path.replace("m:generateContent", f"gemini-2.5-pro:{method}"), json.dumps(asked).encode()
        if self.stream and self.api in {"chat", "completions"}:
            asked = {"stream_options": {"include_usage": True}, **asked}
        return path, json.dumps({**asked, "stream": self.stream}).encode()

    def says(self, feed: str) -> list[Said]:
        """What each engine answers, in the order in which they are asked. `feed`: at once, by event, or by byte."""
        names = ("chunks.txt", "elsewhere.txt") if self.stream else ("answer.json", "elsewhere.json")
        paths = [self.folder / name for name in names]
        return [_said(path.read_bytes(), self.stream, feed) for path in paths if path.exists()]


def runs() -> list[Run]:
    """All that there are."""
    folders = sorted(path.parent for path in CASES.glob("*/*/why.txt"))
    return [
        Run(folder, stream)
        for folder in folders
        for name, stream in (("chunks.txt", True), ("answer.json", False))
        if (folder / name).exists()
    ]


def _json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _said(raw: bytes, stream: bool, feed: str) -> Said:
    found = _HEAD.match(raw)
    status, media, more = (int(found[1]), found[2].decode(), found[3] or b"") if found else (200, "", b"")
    body = raw[found.end() :] if found else raw
    headers = dict(each.split(": ", 1) for each in more.decode().split(" | ") if each)
    cut = headers.pop("cut", "") == "yes"
    if not stream or status != 200 or media == JSON:
        return Said(body.rstrip(b"\n") if not stream else body, status, media or JSON, headers)
    pieces = {"at once": [body], "by event": _EVENT_END.split(body), "by byte": [bytes([each]) for each in body]}
    return Said(b"", status, media or EVENTS, headers, [piece for piece in pieces[feed] if piece], cut)


def shown(answered: Answered, run: Run) -> str:
    """What the client has got, as the expected file has it."""
    media = answered.headers.get("content-type", "")
    text = _the_same_each_time(answered)
    usual = EVENTS if run.stream else JSON
    if answered.status == 200 and media.startswith(usual):
        return text if run.stream else _pretty(text)
    more = [f"{name}: {answered.headers[name]}" for name in _KEPT_HEADERS if name in answered.headers]
    return f"HTTP {' | '.join([f'{answered.status} {media}', *more])}\n{_pretty(text)}"


def charged(answered: Answered) -> dict[str, Any]:
    """What the row of a request says."""
    row = answered.row
    assert row is not None, "no engine was asked"
    usage = json.loads(row["usage"] or "{}")
    receipt = usage.get("warmroute", {})
    found = {
        "outcome": row["outcome"],
        "prompt": row["prompt_tokens"],
        "cached": row["cached_tokens"],
        "completion": row["completion_tokens"],
        "estimated": [name for name in receipt.get("estimated", []) if name != "cached_tiers"],
        "nanousd": row["price_nanousd"],
    }
    if len(answered.sent) > 1:
        found["engines"] = len(answered.sent)
    return found


def _the_same_each_time(answered: Answered) -> str:
    text = answered.body.decode("utf-8", "backslashreplace")
    receipt_id = answered.headers.get("x-warmroute-receipt", "")
    if receipt_id:
        text = text.replace(receipt_id, "wr-RECEIPT").replace(receipt_id.removeprefix("wr-"), "RECEIPT")
    text = _RECEIPT.sub("wr-RECEIPT", text)
    text = _MADE.sub("call_MADE_", text)
    text = _TIMES.sub(r"\g<1>0", text)
    while found := _COST.search(text):
        _, end = json.JSONDecoder().raw_decode(text, found.end())
        begin = found.start() - 1 if text[found.start() - 1] == "," else found.start()
        text = text[:begin] + text[end:]
    return text


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"
    except ValueError:
        return text if text.endswith("\n") else text + "\n"
