"""Header names as they came -> lower case, kept: peers send the same few in each request and answer."""

from typing import Final

MAX_KEPT: Final = 512
MAX_KEPT_BYTES: Final = 64  # of one name

KEPT: Final[dict[bytes, str]] = {}


def lower_name(raw: bytes) -> str:
    """A header's name in lower case. Look into `KEPT` first: a call costs more than the answer."""
    name = raw.decode("latin-1").lower()
    if len(raw) <= MAX_KEPT_BYTES:
        if len(KEPT) >= MAX_KEPT:
            KEPT.clear()
        KEPT[raw] = name
    return name
