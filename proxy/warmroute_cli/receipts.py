"""`warmroute receipts list|show [ID]`: lists the newest turns, or explains the price and the losses of one turn."""

import json
import textwrap
from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from warmroute.contract.money import usd
from warmroute_cli.api import Api, ApiError
from warmroute_cli.asking import admin_apis, tenants_api
from warmroute_cli.names import MOST, agent_names, newest, question_of, session_names
from warmroute_cli.tables import Column, Row, fitted, width
from warmroute_cli.usage import noted, since_of
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.secrets import SecretError
from warmroute_proxy.server.control.receipt_words import in_words

if TYPE_CHECKING:
    from warmroute_cli.past import PastFleet

DECISIONS = {"limit": "1000"}
ID_CHARS: Final = 27
WIDE: Final = 120
"""If the output has at least this width, a table shows the date of each turn, even if all turns are of one day."""
COLUMNS: Final = (
    Column("receipt"), Column("ended"), Column("turn", is_number=True), Column("prompt", is_number=True),
    Column("cached", is_number=True), Column("cost USD", is_number=True), Column("session", optional=True),
    Column("agent", optional=True), Column("answer", is_number=True, optional=True), Column("model", optional=True),
    Column("region", optional=True),
)  # fmt: skip


def run(arguments: Namespace) -> int:
    """Print receipts. Exit status 0: done, 1: some turns are missing, 2: not done."""
    return _show(arguments) if arguments.action == "show" else _list(arguments)


def _list(arguments: Namespace) -> int:
    api, parameters = tenants_api(arguments), {"limit": str(arguments.limit)} | since_of(arguments)
    session = ""
    if arguments.session:
        of_session, session = question_of(api, arguments.session)
        parameters |= of_session
    found = api.ask("/usage/receipts", parameters, session=session)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        names = session_names(newest(api)) if found["data"] else {}
        print("\n".join(receipts_table(found["data"], width(), names)))
    return 0 if noted(found) else 1


def _show(arguments: Namespace) -> int:
    api = tenants_api(arguments)
    receipt = api.ask(f"/usage/receipts/{_whole_id(api, arguments.receipt)}")
    if arguments.json:
        print(json.dumps(receipt, indent=2))
    else:
        session = str(receipt.get("usage", {}).get("warmroute", {}).get("session") or "")
        name = session_names(newest(api)).get(session, session)
        for line in in_words(receipt, _decision(arguments, receipt)):
            named = line.replace(f"session {session}", f"session {name}") if session else line
            print(textwrap.fill(named, width(), break_long_words=False, break_on_hyphens=False))
    return 0


def _whole_id(api: "Api | PastFleet", given: str) -> str:
    """Complete an id from its beginning `given`, with or without `wr-`, among the newest turns. Empty: the newest turn.
    Raises: ApiError, if no id or several ids begin with `given`.
    """
    if not given:
        turns = api.ask("/usage/receipts", {"limit": "1"})["data"]
        if not turns:
            raise ApiError("there is no turn yet")
        return str(turns[0]["id"])
    start = given if given.startswith("wr-") else f"wr-{given}"
    if len(start) >= ID_CHARS or not start[3:]:
        return quote(start, safe="")
    ids = dict.fromkeys(str(turn["id"]) for turn in api.ask("/usage/receipts", {"limit": MOST})["data"])
    found = [each for each in ids if each.startswith(start)]
    if not found:
        raise ApiError(f"none of the newest {MOST} turns has a receipt that begins with {start!r}")
    if len(found) > 1:
        raise ApiError(f"{len(found)} receipts begin with {start!r}: {', '.join(found[:5])}")
    return found[0]


def _decision(arguments: Namespace, receipt: dict[str, Any]) -> dict[str, Any] | None:
    """The turn's placement decision; None if its proxy has forgotten it, or if no admin listener answers."""
    region = receipt.get("usage", {}).get("warmroute", {}).get("region")
    try:
        admin = admin_apis(arguments).get(region)
        decisions = admin.ask("/admin/decisions", DECISIONS)["decisions"] if admin is not None else []
    except (ApiError, ConfigError, SecretError):
        return None
    return next((decision for decision in decisions if decision["id"] == receipt["id"]), None)


def receipts_table(turns: list[dict[str, Any]], most: int, names: Mapping[str, str] | None = None) -> list[str]:
    """The lines of a table of turns, at most `most` characters wide. A turn that was not completed shows its outcome.
    `names`: hash of a session -> its name.
    """
    known = session_names(turns) | (dict(names) if names else {})
    agents = agent_names(turns)
    ended = [datetime.fromtimestamp(turn["settled_at"]).astimezone() for turn in turns]
    days = {each.date() for each in ended}
    form = "%H:%M:%S" if len(days) == 1 and most < WIDE else "%Y-%m-%d %H:%M:%S"
    rows: list[Row] = []
    for turn, at, agent in zip(turns, ended, agents, strict=True):
        counts = [f"{turn[name]:,}" for name in ("turn", "prompt_tokens", "cached_tokens")]
        cells = [turn["id"], at.strftime(form), *counts, usd(turn["price_nanousd"])]
        outcome = [] if turn["outcome"] == "completed" else [str(turn["outcome"])]
        of = known.get(turn["session"] or "", "-")
        answer = f"{turn['completion_tokens']:,}"
        rows.append(Row([*cells, of, agent, answer, turn["model"], turn["region"]], outcome))
    return fitted(COLUMNS, rows, "outcome", most)
