"""Signatures of `thinking` blocks: an HMAC of the text proves that a block which comes back was in an answer.

A signature depends only on the key and the text, so each turn keeps or drops the same blocks. The key belongs to the
tenant's share group (tenants that may use each other's cached prompts), so blocks of other groups are not accepted. No
proxy has to remember a block.
"""

import base64
import hashlib
import hmac
from typing import Final

_PREFIX: Final = "wr1."  # names the form, so that the form can change


class Signing:
    """The signature of a text that comes in pieces."""

    __slots__ = ("_mac",)

    def __init__(self, key: bytes) -> None:
        self._mac = hmac.new(key, digestmod=hashlib.sha256)

    def add(self, text: str) -> None:
        self._mac.update(text.encode("utf-8", "surrogatepass"))

    def add_bytes(self, text: bytes) -> None:
        self._mac.update(text)

    def signature(self) -> str:
        return _written(self._mac.digest())


def signature_of(key: bytes, text: str) -> str:
    return _written(hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256"))


def is_signed(key: bytes, text: str, signature: str) -> bool:
    """Whether `signature` is the signature of `text`, compared in constant time."""
    return hmac.compare_digest(signature_of(key, text).encode(), signature.encode("utf-8", "surrogatepass"))


def _written(digest: bytes) -> str:
    return _PREFIX + base64.urlsafe_b64encode(digest).decode().rstrip("=")
