"""Reasoning that clients keep for us: sealed, so that only its own tenant's proxies read it, and none can forge it.

The cipher is AES-SIV (RFC 5297), which needs no nonce: the same text under the same key is the same seal, so that an
answer that is sent twice is the same answer.
"""

import base64
import binascii
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

MAX_KEYS: Final = 256
_VERSION: Final = "wr1."


class Seal:
    """Seals and opens texts by one key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self._cipher = _cipher(key)

    def seal(self, text: str) -> str:
        """A text, sealed."""
        sealed = self._cipher.encrypt(text.encode("utf-8", "surrogatepass"), None) if text else b""
        return _VERSION + base64.urlsafe_b64encode(sealed).decode()

    def open(self, sealed: str) -> str | None:
        """The text; None where this key did not seal it."""
        from cryptography.exceptions import InvalidTag

        if not sealed.startswith(_VERSION):
            return None
        try:
            data = base64.b64decode(sealed[len(_VERSION) :], altchars=b"-_", validate=True)
            return self._cipher.decrypt(data, None).decode("utf-8", "surrogatepass") if data else ""
        except (InvalidTag, binascii.Error, ValueError):
            return None


@lru_cache(maxsize=MAX_KEYS)
def _cipher(key: bytes) -> "AESSIV":
    """The library takes 30 ms to import, so only what seals imports it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    return AESSIV(key)
