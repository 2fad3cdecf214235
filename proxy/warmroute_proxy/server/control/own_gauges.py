"""What `/metrics` shows of the proxy as a program: its start, its memory, and how long its certificate is valid."""

import os
import ssl
from pathlib import Path
from typing import Final

from warmroute_proxy.server.base import declared_metrics as declared
from warmroute_proxy.server.base.metrics import GaugeRow
from warmroute_proxy.server.http.tls import Tls

_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class OwnGauges:
    """Gauges of the whole proxy, the same in each of its processes."""

    def __init__(self, state_dir: Path, tls: Tls | None) -> None:
        self._lock = state_dir / "lock"  # taken at the start
        self._tls = tls

    def gauges(self) -> list[GaugeRow]:
        """The start of the proxy, and with TLS the end of its certificate."""
        rows: list[GaugeRow] = [(declared.START_TIME_SECONDS, (), self._lock.stat().st_mtime)]
        if self._tls is not None and self._tls.valid_until:
            expiry_s = float(ssl.cert_time_to_seconds(self._tls.valid_until))
            rows.append((declared.CERTIFICATE_EXPIRY_SECONDS, (), expiry_s))
        return rows


def resident_bytes() -> int:
    """The resident memory of this process; 0 if the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
