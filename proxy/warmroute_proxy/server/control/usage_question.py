"""Reads questions about usage from query parameters: grouping, start, tenant, limit and session. Pure."""

import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple, get_args

from warmroute.contract import headers as names
from warmroute.contract.identity import InvalidSessionKey, check_key
from warmroute_proxy.server.base.errors import Refusal, quoted
from warmroute_proxy.server.intake.caller import identity_headers
from warmroute_proxy.server.ledger.usage_sums import MAX_LISTED, By

LISTED: Final = 20  # how many turns are listed without a `limit`

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,9})([smhdw])")
_SECONDS: Final = re.compile(r"\d{1,12}(\.\d{1,9})?")
_HASH: Final = re.compile(r"[0-9a-f]{16}")
_SINCE: Final = "a time ago like 1h or 7d (s, m, h, d, w), a day like 2026-11-23 (UTC), or unix seconds"


class Question(NamedTuple):
    """A question about usage. `since_s`: unix seconds; `session_hash`: the hash of a session, as receipts show it."""

    by: By | None = None
    since_s: float | None = None
    tenant: str | None = None
    limit: int = LISTED
    session_hash: str | None = None


def read_question(parameters: Iterable[tuple[str, str]], allowed: Collection[str], now_s: float) -> Question:
    """The question in query parameters. Raises: Refusal, if a parameter is unknown, given twice or wrong."""
    given = given_once(parameters, allowed, f"; the session's key goes in the header {names.AFFINITY}")
    question = Question(tenant=given.get("tenant"))
    if "by" in given:
        question = question._replace(by=_by(given["by"]))
    if "since" in given:
        question = question._replace(since_s=_since(given["since"], now_s))
    if "limit" in given:
        question = question._replace(limit=_limit(given["limit"]))
    if "session_hash" in given:
        question = question._replace(session_hash=_hash(given["session_hash"]))
    return question


def given_once(
    parameters: Iterable[tuple[str, str]], allowed: Collection[str], hint_of_session: str = ""
) -> dict[str, str]:
    """The query parameters. `hint_of_session`: added to the refusal of a parameter `session`. Raises: Refusal, if a
    parameter is unknown or given twice.
    """
    given: dict[str, str] = {}
    for name, value in parameters:
        if name not in allowed:
            hint = hint_of_session if name == "session" else ""
            text = f"there is no parameter {quoted(name)} here, but: {', '.join(allowed) or 'none'}{hint}"
            raise Refusal(400, text, code="unknown_parameter", param=name)
        if name in given:
            raise Refusal(400, f"{name} is given twice", code="invalid_value", param=name)
        given[name] = value
    return given


def session_key(header: str | None) -> str | None:
    """The session key in a question's header; None without one. Raises: Refusal, if the key is not valid."""
    if not header:
        return None
    try:
        return check_key(identity_headers({names.AFFINITY: header})[names.AFFINITY], names.AFFINITY)
    except InvalidSessionKey as error:
        raise Refusal(400, str(error), code="invalid_session_key", param=error.source) from None


def _by(text: str) -> By:
    for by in get_args(By):
        if by == text:
            found: By = by
            return found
    raise _wrong("by", text, f"one of {', '.join(get_args(By))}")


def _since(text: str, now_s: float) -> float:
    if found := _DURATION.fullmatch(text):
        number, unit = found.groups()
        return now_s - int(number) * _UNITS_S[unit]
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _wrong("since", text, _SINCE) from None


def _hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise _wrong("session_hash", text, "the hash of a session: 16 hexadecimal digits, as receipts show it")
    return text


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= MAX_LISTED):
        raise _wrong("limit", text, f"a number from 1 to {MAX_LISTED}")
    return int(text)


def _wrong(name: str, text: str, wanted: str) -> Refusal:
    return Refusal(400, f"{name}: {quoted(text)} is not {wanted}", code="invalid_value", param=name)
