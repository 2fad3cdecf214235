"""The conversations without a session key on disk, so that they go on over a restart of the proxy.

They are one file in the state folder, `conversations.json`: of each its key, its tenant and the hash that its newest
request ends with. Hashes are made under the tenant's key; no text is kept, so that a message that comes back shortened
is not found again after a restart. The file is written each `WRITE_EVERY_S` where there is something new, in a thread,
beside the old one, which it then replaces. A process that is killed loses what has come since.

Limit: as many as are in memory (`MAX_CONVERSATIONS`), and `MAX_BYTES` of the file.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from warmroute.contract.conversations import Conversations, Newest
from warmroute_proxy.server.base.files import write_whole

FILE: Final = "conversations.json"
MAX_BYTES: Final = 16 * 2**20
WRITE_EVERY_S: Final = 5.0

log = logging.getLogger(__name__)
_Stored = list[tuple[str, str, int]]


class ConversationFile:
    """The file of one proxy. `writes`: whether this process keeps it; others of the proxy know the same."""

    def __init__(self, state_dir: Path, conversations: Conversations, *, writes: bool) -> None:
        self._path = state_dir / FILE
        self._conversations = conversations
        self._writes = writes
        self._written = -1
        self._failed = False

    def restore(self) -> None:
        """Read what was written before this start."""
        try:
            with self._path.open("rb") as file:
                stored = msgspec.json.decode(file.read(MAX_BYTES), type=_Stored)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            log.error("%s cannot be read, so conversations start again: %s", self._path, type(error).__name__)
            return
        for key, tenant, tip in stored:
            self._conversations.observe(Newest(key, tenant, tip, 0, b""))
        self._written = self._conversations.changes

    async def keep(self) -> None:
        """Write the file again and again, until this is cancelled."""
        while self._writes:
            await asyncio.sleep(WRITE_EVERY_S)
            if stored := self._new():
                await asyncio.to_thread(self._write, stored)

    def close(self) -> None:
        """Write what has come since the last time."""
        if self._writes and (stored := self._new()):
            self._write(stored)

    def _new(self) -> _Stored:
        changes = self._conversations.changes
        if changes == self._written:
            return []
        self._written = changes
        return [(newest.key, newest.tenant, newest.tip) for newest in self._conversations.newest()]

    def _write(self, stored: _Stored) -> None:
        try:
            write_whole(self._path, msgspec.json.encode(stored))
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.error("conversations will be lost at a restart: %s", error.strerror)
            self._failed = True
