"""The bytes that were read from a connection while a request of that connection is being answered."""

from typing import Final

from warmroute_proxy.server.http.body_memory import BodyReservation

READ_AHEAD_BYTES: Final = 65536  # with more bytes, the socket is not read


class ReadAhead:
    """Bytes behind a request that is being answered. `full`: the socket is not read any more."""

    def __init__(self, reservation: BodyReservation) -> None:
        self.data = bytearray()
        self.reservation = reservation
        self.full = False
