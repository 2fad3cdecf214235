"""The bytes that were read from a connection while a request of that connection is being answered."""

from typing import Final

from warmroute_proxy.server.http.body_memory import BodyReservation

READ_AHEAD_BYTES: Final = 65536  # the socket is not read while more bytes wait


class ReadAhead:
    """Bytes that came after a request that is being answered. `full`: the socket is not read, since too many wait."""

    def __init__(self, reservation: BodyReservation) -> None:
        self.data = bytearray()
        self.reservation = reservation
        self.full = False
