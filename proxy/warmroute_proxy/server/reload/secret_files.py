"""The files with secrets that may be replaced while a proxy runs.

They contain the fleet secret, the addresses of stores, the keys of engines, and headers for the collector of traces.
The files are read again at each order to reload and, if the config is watched, when they change. No request waits for
this: a request is sent with the keys that are known at that moment. A store keeps its connections until the new address
works.
"""

import logging
import os
from pathlib import Path

from warmroute_proxy.server.base.files import FileChanges
from warmroute_proxy.server.base.secrets import SecretError, Secrets, load_secret
from warmroute_proxy.server.reload.membership import Membership
from warmroute_proxy.server.stores.stores import Stores
from warmroute_proxy.server.tracing.tracing import Tracing

log = logging.getLogger(__name__)


class SecretFiles:
    def __init__(
        self,
        membership: Membership,
        stores: Stores,
        tracing: Tracing | None,
        fleet_secret: Secrets,
        fleet_secret_file: Path | None,
    ) -> None:
        self._membership = membership
        self._stores = stores
        self._tracing = tracing
        self._fleet_secret = fleet_secret
        self._fleet_secret_file = fleet_secret_file
        self._changes = FileChanges()

    def read(self) -> None:
        """Use the present contents of the files. If a file cannot be read, its old secret stays, which is logged."""
        self._read_fleet_secret()
        self._membership.read_keys()
        self._stores.read_addresses()
        if self._tracing is not None:
            self._tracing.read_headers()

    def changed(self) -> bool:
        """Whether a file has changed since the last call."""
        headers = self._tracing.headers_file if self._tracing is not None else None
        mine = self._fleet_secret_file, headers
        self._changes.follow(*mine, *self._membership.key_files, *self._stores.address_files)
        return self._changes.found()

    def _read_fleet_secret(self) -> None:
        try:
            lines = load_secret(self._fleet_secret_file, os.environ, private=True)
            changed, waits = self._fleet_secret.replace(lines)
        except SecretError as error:
            log.error("the fleet secret stays as it was: %s", error)
            return
        if changed:
            log.info("the fleet secret was read again: %d accepted", self._fleet_secret.accepted)
        if waits:
            log.warning("the secret of the caches is another one: it waits for a restart, which makes all caches cold")
