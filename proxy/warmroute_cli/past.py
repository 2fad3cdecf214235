"""Reads usage and receipts of a fleet of `warmroute up` that has ended, from the ledgers in its state directory."""

import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from warmroute_cli.api import ApiError
from warmroute_proxy.core.accounting.entry import Entry
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import SecretError, Secrets, load_secret
from warmroute_proxy.server.control.fleet_usage import listed_body, usage_body
from warmroute_proxy.server.control.usage_question import read_question
from warmroute_proxy.server.ledger.all_processes import AllProcessesReader
from warmroute_proxy.server.ledger.ledger import LEDGER_FILE, receipt_of
from warmroute_proxy.server.ledger.schema import connect
from warmroute_proxy.server.ledger.usage_sums import Turns, add_up, newest

UP: Final = "up"
TENANT: Final = "demo"
RECEIPTS: Final = "/usage/receipts"


class PastFleet:
    """Answers calls as a proxy of the ended fleet would."""

    def __init__(self, state_dir: Path) -> None:
        self._secret = state_dir / "secret"
        self._folders = {file.parent.name: file.parent for file in sorted((state_dir / UP).glob(f"*/{LEDGER_FILE}"))}

    @property
    def is_there(self) -> bool:
        return bool(self._folders)

    def ask(self, path: str, parameters: Mapping[str, str] | None = None, *, session: str = "") -> Any:
        """Answer a call to `/usage` or `/usage/receipts`. Raises: ApiError."""
        try:
            if path.startswith(f"{RECEIPTS}/"):
                return self._receipt(path.removeprefix(f"{RECEIPTS}/"))
            question = read_question((parameters or {}).items(), ("by", "since", "limit", "session_hash"), time.time())
            turns = Turns(TENANT, self._session(session) if session else question.session_hash, question.since_s)
            regions = dict.fromkeys(self._folders, "counted")
            ledgers = [(folder, folder / LEDGER_FILE) for folder in self._folders.values()]
            if path == RECEIPTS:
                listed = [newest(*ledger, turns, question.limit, lambda: False) for ledger in ledgers]
                return listed_body(regions, listed, question.limit)
            sums = [add_up(*ledger, turns, question.by, lambda: False) for ledger in ledgers]
            return usage_body(regions, sums, question.by, question.since_s)
        except Refusal as refusal:
            raise ApiError(refusal.message, refusal.status) from None
        except (sqlite3.Error, SecretError, OSError) as error:
            raise ApiError(f"the ledger of the fleet that has ended cannot be read: {error}") from None

    def _session(self, key: str) -> str:
        return Secrets(load_secret(self._secret, os.environ)).session_of(TENANT, key)[0]

    def _receipt(self, receipt_id: str) -> Any:
        for folder in self._folders.values():
            entry = _entry(folder, receipt_id)
            if entry is not None and entry.tenant == TENANT and entry.ended:
                return msgspec.json.decode(msgspec.json.encode(receipt_of(entry)))
        raise ApiError(f"there is no receipt {receipt_id[:64]!r} of yours", 404)


def _entry(folder: Path, receipt_id: str) -> Entry | None:
    database = folder / LEDGER_FILE
    connection = connect(database, read_only=True)
    try:
        row = connection.execute("SELECT record FROM turn_record WHERE id = ?", (receipt_id,)).fetchone()
    finally:
        connection.close()
    if row is not None:
        return Entry.read(row[0])
    reader = AllProcessesReader(folder, database)
    try:
        return reader.find(TENANT, receipt_id)
    finally:
        reader.close()
