"""The headers and body fields that name a call's session, by the kind of its server (`contract.providers`).

The caller names the kind (`OpenAI(backend="litellm")`), or it follows from the host of `base_url`. A host that is not
in the table counts as warmroute, whose header `x-session-affinity` other servers read, too. A server of another vendor
gets only that vendor's signal: the headers and fields by which the vendor recognises a session.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from warmroute.contract import headers
from warmroute.contract.providers import PROVIDERS, Provider, provider_of

WARMROUTE: Final = PROVIDERS["warmroute"]
"""The only kind of server that gets warmroute's other headers, too."""

_KEY_HASH_CHARS: Final = 40


def backend_of(name: str | None, base_url: str) -> Provider:
    """The kind of server, by its name or by the host of its address; `ValueError` for an unknown name."""
    if name is None:
        return PROVIDERS.get(provider_of(base_url), WARMROUTE)
    if name not in PROVIDERS:
        raise ValueError(f"backend={name!r} is not one of {', '.join(PROVIDERS)}")
    return PROVIDERS[name]


class Signal(NamedTuple):
    headers: Mapping[str, str]
    fields: Mapping[str, Any]


def signal(backend: Provider, key: str | None, *, derived: bool, home: str | None, parent: str | None = None) -> Signal:
    """The headers and fields that name a session to a server. `home`: what `home_of` found in its last answer."""
    added: dict[str, str] = {}
    if home and backend is WARMROUTE:
        added[headers.HOME] = home
    if home and backend.cookie:
        added["cookie"] = f"{backend.cookie}={home}"
    if not key:
        return Signal(added, {})
    sent = _shortened(key, backend.max_chars)
    if backend.header:
        added[backend.header] = sent
        if derived and backend is WARMROUTE:
            added[headers.DERIVED] = "1"
    if parent and backend.parent_header:
        added[backend.parent_header] = _shortened(parent, backend.max_chars)
    return Signal(added, {backend.field: sent} if backend.field else {})


def home_of(backend: Provider, answer: Mapping[str, str]) -> str | None:
    """The session's region, or the value of its cookie, from the headers of an answer; None if there is neither."""
    if backend is WARMROUTE:
        return answer.get(headers.HOME)
    if backend.cookie:
        for pair in answer.get("set-cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == backend.cookie:
                return value
    return None


def _shortened(key: str, max_chars: int) -> str:
    if len(key) <= max_chars:
        return key
    return hashlib.sha256(key.encode()).hexdigest()[:_KEY_HASH_CHARS]
