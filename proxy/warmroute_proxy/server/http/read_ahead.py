"""What was read of a connection behind a request that is being answered."""

from typing import Final

from warmroute_proxy.server.http.body_memory import BodyReservation

READ_AHEAD_BYTES: Final = 65536  # read behind a request that is being answered; beyond, the socket is not read


class ReadAhead:
    """What was read behind a request that is being answered. `full`: the socket is not read any more."""

    def __init__(self, reservation: BodyReservation) -> None:
        self.data = bytearray()
        self.reservation = reservation
        self.full = False
