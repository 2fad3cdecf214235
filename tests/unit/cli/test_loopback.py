"""An HTTP proxy that the environment names is not asked for addresses of this machine."""

import os
import urllib.request

import pytest

from warmroute_cli.loopback import go_direct

PROXY = "http://proxy.example:3128"
OWN = "localhost,127.0.0.1,::1"


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"])
def test_this_machine_is_excepted_in_both_spellings(name: str) -> None:
    environ = {name: PROXY}
    go_direct(environ)
    assert environ == {name: PROXY, "no_proxy": OWN, "NO_PROXY": OWN}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"no_proxy": "corp.example"}, f"corp.example,{OWN}"),
        ({"NO_PROXY": "127.0.0.1,corp.example"}, "127.0.0.1,corp.example,localhost,::1"),
        ({"NO_PROXY": "*"}, "*"),
    ],
)
def test_exceptions_of_the_user_stay(before: dict[str, str], after: str) -> None:
    environ = {"HTTP_PROXY": PROXY, **before}
    go_direct(environ)
    assert {environ["no_proxy"], environ["NO_PROXY"]} == {after}


def test_without_a_proxy_nothing_is_set() -> None:
    environ = {"HTTP_PROXY": "", "PATH": "/bin"}
    go_direct(environ)
    assert environ == {"HTTP_PROXY": "", "PATH": "/bin"}


def test_pythons_own_client_goes_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    assert not urllib.request.proxy_bypass("127.0.0.1:8000")
    go_direct(os.environ)
    assert urllib.request.proxy_bypass("127.0.0.1:8000")
    assert not urllib.request.proxy_bypass("api.example:443")
