"""`other_proxies` may name the proxy itself, so that pods of a StatefulSet share one config."""

import pytest

from warmroute_proxy.server.base.config import ProxyConfig

OTHER = "http://east-1.proxies:8000"


@pytest.mark.parametrize(
    ("host", "own", "is_left"),
    [
        ("east-0", "http://east-0.proxies:8000", False),
        ("east-0.proxies.prod.svc.cluster.local", "http://east-0.proxies:8000", False),
        ("east-2", "http://east-0.proxies:8000", True),
        ("", "http://east-0.proxies:8000", True),
        ("east-0", "http://east-0:8000", False),
        ("east-0", "http://east-0:8001", True),  # another proxy of the same machine
    ],
)
def test_the_own_address_is_left_out(host: str, own: str, is_left: bool) -> None:
    proxy = ProxyConfig(region="east", port=8000, other_proxies=(own, OTHER))
    assert proxy.others_than(host) == ((own, OTHER) if is_left else (OTHER,))


def test_a_picker_s_own_address_is_its_admin_port() -> None:
    proxy = ProxyConfig(region="east", port=9002, admin_port=9003, other_proxies=("http://east-0:9003", OTHER))
    assert proxy.others_than("east-0.proxies") == (OTHER,)
