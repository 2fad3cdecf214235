"""`other_proxies` may name the proxy itself, so that pods of a StatefulSet share one config."""

import pytest

from warmroute_proxy.server.base.config import ProxyConfig

OTHER = "http://east-1.proxies:8000"


@pytest.mark.parametrize(
    ("host", "left"),
    [
        ("east-0", [OTHER]),
        ("east-0.proxies.prod.svc.cluster.local", [OTHER]),
        ("east-2", ["http://east-0.proxies:8000", OTHER]),
        ("", ["http://east-0.proxies:8000", OTHER]),
    ],
)
def test_the_own_address_is_left_out(host: str, left: list[str]) -> None:
    proxy = ProxyConfig(region="east", port=8000, other_proxies=("http://east-0.proxies:8000", OTHER))
    assert list(proxy.others_than(host)) == left


def test_another_port_of_the_same_machine_is_another_proxy() -> None:
    proxy = ProxyConfig(region="east", port=8000, other_proxies=("http://east-0:8001", "http://east-0:8000"))
    assert proxy.others_than("east-0") == ("http://east-0:8001",)


def test_a_picker_s_own_address_is_its_admin_port() -> None:
    proxy = ProxyConfig(region="east", port=9002, admin_port=9003, other_proxies=("http://east-0:9003", OTHER))
    assert proxy.others_than("east-0.proxies") == (OTHER,)
