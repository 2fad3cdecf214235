"""What an engine gets of a client's request, case by case: each is a folder that a person can read.

    cases/API/CASE/why.txt          what it is for, and who reported it
                   request.json     what the client sends; the turns of a conversation are request-1.json, ...
                   chat.json        what the engine gets, or
                   refusal.json     what the client gets: status and body
                   receipt.json     what the receipt says of changes, where there were some
                   path.txt         the path, if it is not that of the API
                   model.toml       settings of the model

`WARMROUTE_UPDATE_GOLDEN=1` writes what comes out; what changed then is in the diff. What holds for all cases is that a
turn which repeats the one before it and adds to it has its messages and tools as a prefix, byte for byte; a line of
`breaks.txt` says which turn has not, and why.
"""

import asyncio
import itertools
import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from tests.apis.case import CASES, PATHS
from tests.subjects.documents import config_of
from warmroute.contract.conversations import Conversations
from warmroute_proxy.server.arrival import noted, translate
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.dialects.dialect import DialectRefusal
from warmroute_proxy.server.dialects.routes import dialect_of
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.caller import Callers
from warmroute_proxy.server.intake.parsed_request import CHAT
from warmroute_proxy.server.intake.request_parser import RequestParser
from warmroute_proxy.server.request.dispatch import answering_body

UPDATE: Final = "WARMROUTE_UPDATE_GOLDEN"
SECRETS: Final = Secrets(b"k" * 48)  # so that what is sealed is the same each time


class Came(NamedTuple):
    """What came of one request: the chat that an engine gets and what the receipt says, or the refusal."""

    chat: bytes | None
    receipt: dict[str, Any]
    refusal: dict[str, Any] | None


def folders() -> list[Path]:
    """The cases of a request; those of an answer are run by `test_answers.py`."""
    return sorted(each.parent for each in CASES.glob("*/*/why.txt") if is_of_request(each.parent))


def is_of_request(folder: Path) -> bool:
    of_answer = any((folder / name).exists() for name in ("chunks.txt", "answer.json"))
    written = any(any(folder.glob(f"{name}*.json")) for name in ("chat", "refusal"))
    return any(folder.glob("request*.json")) and (written or not of_answer)


def config_for(folder: Path) -> Config:
    settings = folder / "model.toml"
    model: dict[str, Any] = {"name": "m", "aliases": ["gpt-*", "claude-*"], "free": True}
    model |= tomllib.loads(settings.read_text()) if settings.exists() else {}
    return config_of(secret={"file": "secret"}, model=[model])


class Proxy:
    """As much of a proxy as reads requests; it remembers those before, as a proxy does."""

    def __init__(self, config: Config) -> None:
        loop = asyncio.new_event_loop()
        self._parser = RequestParser(config, Callers(SECRETS, Conversations("x")), loop, Metrics())
        loop.close()  # only a process that reads large bodies would use it
        self._tenant = config.tenants[0]

    def came(self, path: str, raw: bytes) -> Came:
        request = Request(0.0, "POST", path)
        request.body = raw
        dialect = dialect_of(path)
        caller = self._parser.callers.of(path if dialect is None else CHAT, self._tenant, {})
        try:
            if dialect is None:
                read = self._parser.read(request, caller)
            else:
                chat, found = translate(request, dialect, self._parser.terms(self._tenant))
                read = noted(self._parser.read_translated(chat, caller), dialect, found.changes)
        except Refusal as error:
            refusal = error if dialect is None else DialectRefusal(dialect, error)
            return Came(None, {}, {"status": refusal.status, "body": json.loads(refusal.body())})
        parsed = read.parsed
        changes = parsed.changes._replace(dropped_fields=parsed.dropped_fields(frozenset()))
        receipt = json.loads(json.dumps(changes.members({"prefix_changed": 1})))
        return Came(b"".join(answering_body(parsed, read.body, "", None, None)), receipt, None)


def numbered(folder: Path, name: str) -> list[Path]:
    """The files of all turns, or the one of the only turn."""
    return [folder / f"{name}.json"] if (folder / "request.json").exists() else sorted(folder.glob(f"{name}-*.json"))


def turns(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in numbered(folder, "request"):
        yield path.stem.removeprefix("request"), path.read_bytes()


def shown(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def expected_files(came: Came, number: str) -> dict[str, str]:
    """What a case holds, by the names of its files."""
    if came.chat is None:
        return {f"refusal{number}.json": shown(came.refusal)}
    files = {f"chat{number}.json": shown(json.loads(came.chat))}
    return {**files, f"receipt{number}.json": shown(came.receipt)} if came.receipt else files


def goes_on(shorter: bytes, longer: bytes, *, is_chat: bool) -> bool:
    """Whether a chat has the tools of another one, and its messages first: byte for byte, if a translator wrote it."""
    before, after = (msgspec.json.decode(each, type=dict[str, msgspec.Raw]) for each in (shorter, longer))
    if bytes(before.get("tools", b"")) != bytes(after.get("tools", b"")):
        return False
    messages, more = bytes(before["messages"]), bytes(after["messages"])
    if is_chat:
        found = json.loads(messages)
        return bool(json.loads(more)[: len(found)] == found)
    return more.startswith(messages[:-1])


def breaks_of(folder: Path) -> list[tuple[int, str]]:
    """The turns that do not go on from the one before, and why."""
    path = folder / "breaks.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(turn), why.strip()) for turn, _, why in (line.partition(":") for line in lines)]


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_what_an_engine_gets(folder: Path) -> None:
    """As the file says, whether the proxy has seen the conversation before or not."""
    given = folder / "path.txt"
    path = given.read_text().strip() if given.exists() else PATHS[folder.parent.name]
    config = config_for(folder)
    files: dict[str, str] = {}
    chats: list[bytes] = []
    same = Proxy(config)
    for number, raw in turns(folder):
        came = Proxy(config).came(path, raw)
        files |= expected_files(came, number)
        assert same.came(path, raw) == came, "it depends on what the proxy has read before"
        assert same.came(path, raw) == came, "it depends on what the proxy has read before"
        if came.chat is not None:
            chats.append(came.chat)
    if os.environ.get(UPDATE):
        for old in (*folder.glob("chat*.json"), *folder.glob("refusal*.json"), *folder.glob("receipt*.json")):
            old.unlink()
        for name, text in files.items():
            (folder / name).write_text(text)
    found = {each.name for name in ("chat", "refusal", "receipt") for each in folder.glob(f"{name}*.json")}
    assert found == set(files)
    for name, text in files.items():
        assert text == (folder / name).read_text(), name
    breaks = {turn for turn, _ in breaks_of(folder)}
    for turn, (shorter, longer) in enumerate(itertools.pairwise(chats), 2):
        assert goes_on(shorter, longer, is_chat=folder.parent.name == "chat") == (turn not in breaks), turn


def test_each_case_says_why() -> None:
    """In a line or two, with a report or the client that sends it."""
    for folder in CASES.glob("*/*"):
        text = (folder / "why.txt").read_text()
        assert 20 < len(text) < 500, folder
        assert folder.parent.name in PATHS
