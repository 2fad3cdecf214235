"""Requests that a browser sends for a page of another host: an engine on this machine has no key that would stop them.

Each browser names the page's origin in a POST, and says of each request to this machine where it comes from (Fetch
Metadata). A page may have had its name resolved to this machine, so the name in `Host` counts for nothing.
"""

from collections.abc import Mapping

_OWN = frozenset({b"none", b""})
"""What a browser says of an address that a person has typed."""


def is_of_another_page(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a page has sent it. The engine has no pages, so each page is another host's."""
    return b"origin" in headers or headers.get(b"sec-fetch-site", b"") not in _OWN
