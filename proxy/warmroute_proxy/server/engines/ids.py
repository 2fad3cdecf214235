"""Ids that this process draws: of receipts, of requests to engines (rids), and bootstrap rooms.

Rids have one fixed length, because an engine matches abort ids by prefix. Bootstrap rooms are unique over all processes
of a fleet, never 0, and leave space below 2^63 for the prompts of a request; where prefill has several DP ranks, room
modulo ranks chooses the rank (SGLang's `follow_bootstrap_room`).
"""

import os
import time
from typing import Final

_BOOTSTRAP_ROOM_BITS: Final = 39
_BOOTSTRAP_ROOM_STEP: Final = 1024  # rooms of one request: room .. room + prompts, and the choice of a rank


class Ids:
    """Rids, rooms and receipt ids of one process; unique over processes by 53 or more random bits."""

    def __init__(self) -> None:
        self._prefix = os.urandom(10).hex()
        self._count = 0
        self._random: list[str] = []  # for the next receipts, the first one last
        self._second = ""
        self._bootstrap_room_base = int.from_bytes(os.urandom(3), "big") << _BOOTSTRAP_ROOM_BITS  # 24 + 39 = 63 bits
        # Counting begins at a random number, since two processes may draw the same base.
        self._bootstrap_rooms = int.from_bytes(os.urandom(4), "big")

    def receipt(self) -> str:
        """`wr-` and 24 hex digits: the second in which a few hundred were drawn, then 64 random bits.

        So ids ascend roughly, and the ledger, whose rows are found by them, writes at the end of its index.
        """
        if not self._random:
            drawn = os.urandom(8 * 256).hex()
            self._random = [drawn[at : at + 16] for at in range(len(drawn) - 16, -1, -16)]
            self._second = f"wr-{int(time.time()):08x}"
        return self._second + self._random.pop()

    def rid(self) -> str:
        """32 hex digits."""
        self._count += 1
        return self._prefix + (self._count & 0xFFFFFFFFFFFF).to_bytes(6, "big").hex()

    def bootstrap_room(self, rank: int, ranks: int, prompts: int) -> int:
        """A room whose remainder by `ranks` is `rank`, and one for each further prompt; from 1 to 2^63 - 1,024."""
        assert prompts + ranks <= _BOOTSTRAP_ROOM_STEP
        self._bootstrap_rooms += 1
        space = (1 << _BOOTSTRAP_ROOM_BITS) // _BOOTSTRAP_ROOM_STEP - 2
        first = self._bootstrap_room_base + (1 + self._bootstrap_rooms % space) * _BOOTSTRAP_ROOM_STEP
        return first - first % ranks + rank
