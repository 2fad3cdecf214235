"""API keys that are kept in the database: made, rotated and revoked for all proxies, beside those of the config.

A process asks each `POLL_S` whether something has changed, and reads all keys where it has. So a key that is revoked is
refused everywhere within 2 s. While the database is away the keys that were read last are good, for `key_max_age_s`,
also over a restart: their digests are kept in `state_dir`. A key that ends by itself does so by the clock of the proxy.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.secrets import ApiKeys
from warmroute_proxy.server.stores.store_state import Connection, StoreError
from warmroute_proxy.server.stores.store_thread import StoreBusy, StoreThread

POLL_S: Final = 0.75
WRITE_S: Final = 30.0
MAX_KEYS: Final = 1_000_000
KEYS_FILE: Final = "keys.json"

_LOG: Final = logging.getLogger(__name__)
_VERSION: Final = "SELECT version FROM directory_version WHERE kind = 'key'"
_KEYS: Final = f"""
SELECT sha256, tenant, extract(epoch FROM expires_at)::float8 FROM api_key
    WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) LIMIT {MAX_KEYS}
"""


class StoredKey(msgspec.Struct, array_like=True, frozen=True):
    """A key by its digest. `expires_at`: unix seconds; None: never."""

    sha256: str
    tenant: str
    expires_at: float | None


class KnownKeys(msgspec.Struct):
    """What was read last: the version, the keys, and until when the database has answered, unix seconds."""

    version: int = -1
    keys: list[StoredKey] = []
    read_at: float = 0.0


_decode: Final = msgspec.json.Decoder(KnownKeys).decode


class KeyDirectory:
    """Keeps the keys of this process as the database has them. Used in the event loop of requests."""

    def __init__(
        self,
        thread: StoreThread,
        config: Config,
        file: Path,
        max_age_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`file`: where what was read is kept; `clock`: unix seconds."""
        self._thread = thread
        self._of_config = config.tenant_by_sha256()
        self._tenants = frozenset(config.tenant_by_name)
        self._file = file
        self._max_age_s = max_age_s
        self._clock = clock
        self._known = _read(file)
        self._good: dict[str, str] = {}
        self._expires_at: float | None = None
        self._written_s = 0.0
        self.api_keys = ApiKeys(self._of_config)
        self.on_change: list[Callable[[], None]] = []
        """Called when keys are no longer what they were."""
        self._use()

    def replace(self, config: Config) -> None:
        """Know the keys and tenants of another config."""
        self._of_config = config.tenant_by_sha256()
        self._tenants = frozenset(config.tenant_by_name)
        self._use()

    async def watch(self) -> None:
        """Look for changes until it is cancelled."""
        while True:
            with contextlib.suppress(StoreError, StoreBusy):  # the state of the database is shown elsewhere
                await self.look()
            now_s = self._clock()
            stale = self._good and now_s - self._known.read_at > self._max_age_s
            if stale or (self._expires_at is not None and now_s >= self._expires_at):
                self._use()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Read the keys if they have changed. Raises: StoreError, StoreBusy."""
        version = self._known.version

        async def read(connection: Connection) -> KnownKeys | None:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                found = await connection.fetchval(_VERSION)
                if found == version:
                    return None
                return KnownKeys(found, [StoredKey(*row) for row in await connection.fetch(_KEYS)])

        was_stale = self._clock() - self._known.read_at > self._max_age_s
        changed = await self._thread.ask(read)
        if changed is not None:
            self._known = changed
        self._known.read_at = self._clock()
        if changed is not None or was_stale:
            self._use()
        if changed is not None or self._known.read_at > self._written_s + WRITE_S:
            self._written_s = self._known.read_at
            _write(self._file, self._known)

    def _use(self) -> None:
        """Let requests be checked against the keys that are good now."""
        now_s = self._clock()
        fresh = now_s - self._known.read_at <= self._max_age_s
        if self._known.keys and not fresh:
            _LOG.error("the database has not answered for %g s: its API keys are refused", self._max_age_s)
        keys = [key for key in self._known.keys if fresh and (key.expires_at is None or key.expires_at > now_s)]
        self._expires_at = min((key.expires_at for key in keys if key.expires_at is not None), default=None)
        self._good = {key.sha256: key.tenant for key in keys if key.tenant in self._tenants}
        if unknown := {key.tenant for key in keys} - self._tenants:
            _LOG.warning("the database has keys of tenants that this config does not have: %d tenants", len(unknown))
        self.api_keys.replace({**self._good, **self._of_config})
        for call in self.on_change:
            call()


def _read(file: Path) -> KnownKeys:
    """What was kept. Its version says nothing: it may be of another database."""
    try:
        return msgspec.structs.replace(_decode(file.read_bytes()), version=-1)
    except FileNotFoundError:
        return KnownKeys()
    except (OSError, msgspec.DecodeError) as error:
        _LOG.error("%s cannot be read: %s", file, error)
        return KnownKeys()


def _write(file: Path, known: KnownKeys) -> None:
    new = file.with_suffix(f".{os.getpid()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            out.write(msgspec.json.encode(known))
        new.replace(file)
    except OSError as error:
        _LOG.error("%s cannot be written: %s", file, error.strerror)
