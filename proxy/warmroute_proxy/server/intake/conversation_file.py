"""Keeps conversations without a session key on disk, so that the proxy recognises them after a restart.

The file `conversations.json` in the state folder has the key of each conversation, its tenant and the hash of its
newest prompt. Hashes are made under the tenant's key. The file does not hold text. So if a client sends an earlier
message in shortened form, its conversation is not recognised by that message after a restart. Every `WRITE_EVERY_S`
seconds, if there is something new, a thread writes a new file, and then replaces the old file with it. A killed process
loses what is new since the last write.

Limits: `MAX_CONVERSATIONS` in memory, and `MAX_BYTES` for the file.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from warmroute.contract.conversations import Conversations, Newest
from warmroute_proxy.server.base.files import read_kept, write_whole

FILE: Final = "conversations.json"
MAX_BYTES: Final = 16 * 2**20
WRITE_EVERY_S: Final = 5.0

log = logging.getLogger(__name__)
_Stored = list[tuple[str, str, int]]


class ConversationFile:
    """The file of one proxy. `writes`: whether this process writes it; all processes know the same conversations."""

    def __init__(self, state_dir: Path, conversations: Conversations, *, writes: bool) -> None:
        self._path = state_dir / FILE
        self._conversations = conversations
        self._writes = writes
        self._written = -1
        self._failed = False

    def restore(self) -> None:
        """Take in the conversations that were written before this start of the proxy."""
        lost = ", so conversations start again"
        for key, tenant, tip in read_kept(self._path, _Stored, [], max_bytes=MAX_BYTES, lost=lost):
            self._conversations.observe(Newest(key, tenant, tip, 0, b""))
        self._written = self._conversations.changes

    async def keep(self) -> None:
        """Write the file periodically, until this task is cancelled."""
        while self._writes:
            await asyncio.sleep(WRITE_EVERY_S)
            if stored := self._new():
                await asyncio.to_thread(self._write, stored)

    def close(self) -> None:
        """Write the file a last time, if there is something new."""
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
