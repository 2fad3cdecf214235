"""Seals (encrypts) the reasoning that clients keep for the proxy; only proxies with the share group's key can read it.

The cipher is AES-SIV (RFC 5297), which needs no nonce: the same text under the same key gives the same sealed text. So
an answer that is sent twice has the same bytes.
"""

import base64
import binascii
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

MAX_KEYS: Final = 256
_URLSAFE: Final = str.maketrans("-_", "+/")
_VERSION: Final = b"\x01"


class Seal:
    """Seals and opens texts by one key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self.key = key  # the cipher object is not kept, since a `Seal` is sent to other processes

    def seal(self, text: str) -> str:
        """The sealed text, in base64 that clients may decode and encode again."""
        sealed = _cipher(self.key).encrypt(text.encode("utf-8", "surrogatepass"), None) if text else b""
        return base64.urlsafe_b64encode(_VERSION + sealed).decode()

    def open(self, sealed: str) -> str | None:
        """The text; None if this key did not seal it. Both alphabets of base64 are read, with padding or without."""
        from cryptography.exceptions import InvalidTag

        bare = sealed.translate(_URLSAFE).rstrip("=")
        try:
            data = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
            if data[:1] != _VERSION:
                return None
            return _cipher(self.key).decrypt(data[1:], None).decode("utf-8", "surrogatepass") if len(data) > 1 else ""
        except (InvalidTag, binascii.Error, ValueError):
            return None


@lru_cache(maxsize=MAX_KEYS)
def _cipher(key: bytes) -> "AESSIV":
    """The cipher of a key. The library takes 30 ms to import, so only code that seals imports it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    return AESSIV(key)
