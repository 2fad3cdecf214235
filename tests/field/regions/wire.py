"""What passes on the lines between regions: whether the words of a tenant reach a region where it may not be served.

A request that entered there is relayed to where it may be served, so its words leave such a region; none come to it.
"""

import socket
import threading
from collections.abc import Mapping
from typing import Final

from .agents import TENANTS
from .namespaces import Network, move_thread_to

_ALL_PACKETS: Final = 3
_OUTGOING: Final = 4
_BUFFER_BYTES: Final = 16_777_216


class Wire:
    """Listens in each region to what comes from the others."""

    def __init__(self, network: Network, words: Mapping[str, bytes]) -> None:
        """`words`: of each tenant that is to be looked for."""
        self._network = network
        self._words = words
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.leaks: list[str] = []
        self.packets = 0

    def listen(self) -> None:
        """Begin, in a thread for each region."""
        for region in self._network.regions:
            thread = threading.Thread(target=self._listen, args=(region,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _listen(self, region: str) -> None:
        words = {tenant: word for tenant, word in self._words.items() if region not in TENANTS[tenant]}
        move_thread_to(region)
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_PACKETS)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            sock.settimeout(0.2)
            while not self._over.is_set():
                try:
                    packet, (line, _, kind, *_) = sock.recvfrom(65_536)
                except TimeoutError:
                    continue
                if kind == _OUTGOING or line not in self._network.regions:
                    continue
                self.packets += 1
                for tenant, word in words.items():
                    if word in packet:
                        self.leaks.append(f"a word of {tenant} came from {line} to {region}")
