"""Trusted certificate authorities of outgoing TLS connections: those of the system, or of the file in SSL_CERT_FILE.

The file is read again after a change, so authorities can be replaced without a restart. If the file cannot be read,
the old authorities stay in use.
"""

import logging
import os
import ssl
from pathlib import Path
from typing import Final

from warmroute_proxy.server.base.files import FileChanges

VARIABLE: Final = "SSL_CERT_FILE"

log = logging.getLogger(__name__)


class Authorities:
    def __init__(self) -> None:
        self._path: Path | None = None
        self._changes = FileChanges()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        if self._context is None:
            path = os.environ.get(VARIABLE)
            self._path = Path(path) if path else None
            self._changes = FileChanges(self._path)
        if self._changes.found() or self._context is None:
            self._read()
        assert self._context is not None
        return self._context

    def _read(self) -> None:
        try:
            if self._path is not None:  # the default context silently ignores a file without certificates
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=self._path)
        except (OSError, ssl.SSLError) as error:
            log.error("%s: %s cannot be used: %s", VARIABLE, self._path, error)
            if self._context is not None:
                return
        self._context = ssl.create_default_context()


authorities: Final = Authorities()
"""The authorities of this process."""
