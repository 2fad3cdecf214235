"""The files of secrets that may be replaced while a proxy runs: addresses of stores, keys of engines, headers for the
collector of traces.

They are read again with each order to reload, and where the config is watched, when they change. No request waits for
that: requests take the keys that there are when they are sent, and a store keeps its connections until the new address
works.
"""

from warmroute_proxy.server.base.config_source import FileChanges
from warmroute_proxy.server.reload.membership import Membership
from warmroute_proxy.server.stores.stores import Stores
from warmroute_proxy.server.tracing.tracing import Tracing


class SecretFiles:
    """Those of one process."""

    def __init__(self, membership: Membership, stores: Stores, tracing: Tracing | None) -> None:
        self._membership = membership
        self._stores = stores
        self._tracing = tracing
        self._changes = FileChanges()

    def read(self) -> None:
        """Use what they have now. What cannot be read stays as it was, which the log says."""
        self._membership.read_keys()
        self._stores.read_addresses()
        if self._tracing is not None:
            self._tracing.read_headers()

    def changed(self) -> bool:
        """Whether one is another than at the last look."""
        headers = self._tracing.headers_file if self._tracing is not None else None
        self._changes.follow(*self._membership.key_files, *self._stores.address_files, headers)
        return self._changes.found()
