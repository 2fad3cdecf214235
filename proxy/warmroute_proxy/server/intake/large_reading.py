"""Runs the process that reads large bodies: calls `intake.read_body` on memory that the proxy's process has filled.

The kernel ends this process by SIGPROF if a body takes more CPU time than allowed.
"""

import ctypes
import hashlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from warmroute.contract.changes import NO_CHANGES, Changes
from warmroute.contract.conversations import MAX_ASKED_BYTES
from warmroute_proxy.dialects.raw_json import BadRequest, Piece
from warmroute_proxy.dialects.work import TranslationWork, check_values
from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.intake.caller import Caller
from warmroute_proxy.server.intake.cleaning import cleaned, cleans_all, has_strict, may_need_cleaning
from warmroute_proxy.server.intake.intake import ReadBody, read_body
from warmroute_proxy.server.intake.large_body import NamedSpan
from warmroute_proxy.server.intake.mending import mended, with_dropped
from warmroute_proxy.server.intake.parsed_request import CHAT

PR_SET_PDEATHSIG: Final = 1
NICENESS: Final = 10  # if CPUs are scarce, the event loop gets nine tenths of one


class TranslatedBody(Protocol):
    """A body of another API, translated into a chat body."""

    pieces: list[Piece]

    @property
    def changes(self) -> Changes:
        """What the translation changed besides the format."""


Translate = Callable[[bytes, Terms], TranslatedBody]


class LargeRequest(NamedTuple):
    """All that the process needs to read a request. `where`: the path by which the body's `size` bytes of memory are
    opened.

    `translate`: makes a chat body of the body; None without translation. `allowed_s`: the CPU time that reading may
    take.
    """

    where: str
    size: int
    path: str
    tenant: TenantConfig
    headers: Mapping[str, str]
    key_id: str
    region: str | None
    translate: Translate | None
    allowed_s: float
    deployment: str


class LargeAnswer(NamedTuple):
    """What the process found. `read`: the request without its body, with copies of the config's tenant and model.

    `size`: the size of the body that has replaced the client's body in memory; None if the client's body is still
    there. `translated`: the translation, without its body.
    """

    read: ReadBody
    spans: list[NamedSpan]
    sha256: str
    size: int | None
    translated: TranslatedBody | None


class Refused(NamedTuple):
    """Why a body is refused: the parts of a `Refusal`."""

    status: int
    message: str
    code: str | None
    param: str | None

    def refusal(self) -> Refusal:
        return Refusal(self.status, self.message, code=self.code, param=self.param)


class Reply(NamedTuple):
    """What was found in a body, and the CPU time that this took. `failed`: the type of an internal error, or empty."""

    found: LargeAnswer | Refused | None
    took_s: float
    failed: str = ""


class _Reading:
    """Reads bodies under one config."""

    def __init__(self, config: Config, secrets: Secrets) -> None:
        self._config = config
        self._secrets = secrets
        self._cleans_all = cleans_all(config)
        self._is_strict = has_strict(config)

    def read(self, asked: LargeRequest, before_write: Callable[[], None]) -> LargeAnswer | Refused:
        """Read a body. `before_write` is called before a translated, cleaned or mended body overwrites the client's."""
        raw = _content(asked.where, asked.size)
        changes, translated, is_other = NO_CHANGES, None, False
        try:
            _check_values(raw)
            caller = Caller(asked.path, asked.tenant, asked.headers, self._secrets, asked.key_id, asked.region)
            pieces: list[Piece] = []
            if asked.translate is not None:
                translated = asked.translate(raw, Terms(caller.tenant, self._secrets, self._config))
                pieces, translated.pieces, changes = translated.pieces, [], translated.changes
            elif caller.path == CHAT and self._is_to_be_cleaned(raw, caller):
                left, changes = cleaned(raw, self._config, TranslationWork())
                pieces = [] if left is raw else [left]
                del left
            if pieces:
                is_other, raw = True, b""  # at most two of old body, pieces and new body are in memory at once
                before_write()
                size = _put(asked.where, pieces)
                pieces.clear()
                raw = _content(asked.where, size)
            try:
                found = read_body(raw, caller, self._secrets, self._config)
            except Refusal as refusal:
                if asked.translate is not None:
                    raise
                raw, dropped = mended(refusal, raw, TranslationWork(), asked.deployment)
                found = read_body(raw, caller, self._secrets, self._config)
                changes = with_dropped(changes, dropped)
                if not is_other:
                    before_write()
                is_other = True
                _put(asked.where, [raw])
        except Refusal as refusal:
            return Refused(refusal.status, refusal.message, refusal.code, refusal.param)
        spans = [NamedSpan(name, span.start, span.end) for name, span in found.body.spans.items()]
        nothing: Any = None
        prompt = found.prompt
        if prompt.asked is not None and len(prompt.asked[-1]) > MAX_ASKED_BYTES:
            prompt = replace(prompt, asked=None)  # too long to be recognised in shortened form, so it is not sent
        without_body = found._replace(parsed=replace(found.parsed, changes=changes), body=nothing, prompt=prompt)
        size_now = len(raw) if is_other else None
        return LargeAnswer(without_body, spans, hashlib.sha256(raw).hexdigest(), size_now, translated)

    def _is_to_be_cleaned(self, raw: bytes, caller: Caller) -> bool:
        return (self._cleans_all or may_need_cleaning(raw, caller, is_strict=self._is_strict)) and caller.region is None


def _content(where: str, size: int) -> bytes:
    with Path(where).open("rb") as memory:
        return memory.read(size)


def _put(where: str, pieces: list[Piece]) -> int:
    """Overwrite a body with pieces. Returns their size."""
    with Path(where).open("r+b", buffering=0) as memory:
        return sum(memory.write(piece) for piece in pieces)


def _check_values(raw: bytes) -> None:
    """Raises: Refusal, if a body holds too many values. They are counted before any value is decoded."""
    try:
        check_values(raw)
    except BadRequest as error:
        raise Refusal(400, str(error), code="invalid_value") from None


def serve(connection: "Connection[Reply | None, LargeRequest]", config: Config, secrets: Secrets) -> None:
    """Read one body after the other, until the proxy ends. The thread of the proxy's event loop has started this
    process.

    For each body a `Reply` is sent. If the body is about to be overwritten with another, None is sent first.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals all processes; the proxy ends this one
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError):  # a filter of system calls may refuse it
        os.nice(NICENESS)
    reading = _Reading(config, secrets)
    while True:
        try:
            asked = connection.recv()
        except (EOFError, OSError):
            return
        signal.setitimer(signal.ITIMER_PROF, asked.allowed_s)
        began_s = time.process_time()
        found, failed = None, ""
        try:
            found = reading.read(asked, partial(connection.send, None))
        except Exception as error:
            failed = type(error).__name__
        connection.send(Reply(found, time.process_time() - began_s, failed))
        signal.setitimer(signal.ITIMER_PROF, 0)
