"""Checks the addresses of images, audio and files in a prompt, since an engine fetches them from its own network.

A client's address could make an engine read local files (`file:`, a path), or call a host that only the engine can
reach: a cloud's metadata service at 169.254.169.254, an admin port at 127.0.0.1. So an address must be `data:`, or have
one of the configured schemes and a public host. Host names are not resolved here, and a name can point to a private
address: the engines' network has to block such requests.

An address that parsers could read differently is refused: one with a user name, a space, a control character, a
backslash, or a host that is not ASCII. A host whose last label is a number is read as an IPv4 address, in any form that
`inet_aton` accepts (url.spec.whatwg.org).
"""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple

MAX_ADDRESS_CHARS: Final = 8192
_DATA: Final = "data:"
_ADDRESS: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,31})://"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[A-Za-z0-9._-]{1,253}))(?::[0-9]{1,5})?(?:[/?#][!-\[\]-~]*+)?"
)
_NUMBER: Final = re.compile(r"[0-9]{1,16}|0[xX][0-9A-Fa-f]{0,16}")
_LOCAL: Final = "localhost"
_NAT64: Final = IPv6Network("64:ff9b::/96")
_GLOBAL_V6: Final = IPv6Network("2000::/3")
"""The range of public IPv6 hosts. Others belong to one site, are reserved, or stand for an IPv4 address."""

_LAST_32_BITS: Final = 0xFFFFFFFF

Network = IPv4Network | IPv6Network


class Addresses(NamedTuple):
    """The addresses that a prompt may contain. `networks`: private networks that are also allowed."""

    schemes: tuple[str, ...] = ("https", "http")
    networks: tuple[Network, ...] = ()

    def problem(self, address: str) -> str | None:
        """What is wrong with an address; None if it is allowed."""
        if address[: len(_DATA)].lower() == _DATA:
            return None
        found = _ADDRESS.fullmatch(address) if len(address) <= MAX_ADDRESS_CHARS else None
        if found is None or found["scheme"].lower() not in self.schemes:
            return f"must be data: or an address that begins with {' or '.join(f'{each}://' for each in self.schemes)}"
        host = found["host"]
        if host is None:
            return self._problem_of(_ip(found["v6"]))
        host = host.rstrip(".").lower()
        if host == _LOCAL or host.endswith(f".{_LOCAL}"):
            return self._problem_of(IPv4Address("127.0.0.1"))
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return self._problem_of(_ipv4(host))
        return None

    def _problem_of(self, ip: IPv4Address | IPv6Address | None) -> str | None:
        if ip is None:
            return "has a host that is not an address"
        if ip.is_global and not ip.is_multicast and (ip.version == 4 or ip in _GLOBAL_V6):
            return None
        if any(ip.version == network.version and ip in network for network in self.networks):
            return None
        return "leads to a private or local network, which is not allowed here"


PUBLIC: Final = Addresses()


def _ip(written: str) -> IPv4Address | IPv6Address | None:
    """Read `written` (a host between brackets) as an IPv6 address. If it embeds an IPv4 address, that is returned
    instead. None if `written` is not an IPv6 address.
    """
    try:
        ip = ip_address(written)
    except ValueError:
        return None
    if isinstance(ip, IPv4Address):
        return None
    if ip in _NAT64:
        return IPv4Address(int(ip) & _LAST_32_BITS)
    return ip.ipv4_mapped or ip.sixtofour or ip


def _ipv4(host: str) -> IPv4Address | None:
    """An IPv4 address of up to four decimal, octal or hexadecimal numbers; the last one fills the remaining bytes."""
    numbers = [_number(each) for each in host.split(".")]
    if len(numbers) > 4 or None in numbers:
        return None
    value = 0
    for number in numbers[:-1]:
        if number is None or number > 255:
            return None
        value = value << 8 | number
    rest_bits, number = 8 * (5 - len(numbers)), numbers[-1]
    if number is None or number >> rest_bits:
        return None
    return IPv4Address(value << rest_bits | number)


def _number(text: str) -> int | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    try:
        if text[:2].lower() == "0x":
            return int(text[2:] or "0", 16)
        return int(text, 8) if len(text) > 1 and text[0] == "0" else int(text)
    except ValueError:  # the digit 8 or 9 in an octal number
        return None
