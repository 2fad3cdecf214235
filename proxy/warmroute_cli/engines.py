"""`warmroute engines`: the state of the engines of a running proxy, and draining one before its restart.

Speaks to the proxy's admin listener. Its address is that of the config file, or `--admin-url`; its key follows from the
fleet secret, or is in the variable `WARMROUTE_ADMIN_KEY` where the config has a digest of another one.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.secrets import SecretError, Secrets, load_secret

TIMEOUT_S: Final = 10.0
POLL_EVERY_S: Final = 0.5
KEY_VARIABLE: Final = "WARMROUTE_ADMIN_KEY"


class AdminError(Exception):
    """The proxy does not answer, or refuses; the message has the reason."""


def run(arguments: argparse.Namespace) -> int:
    """Run the action. 0: done, 1: not drained in time, 2: not done."""
    try:
        config = load_config(arguments.config)
        admin = Admin(arguments.admin_url or _url(config), _key(config))
        if arguments.action == "list":
            show(admin.ask("GET", "")["engines"])
            return 0
        path = f"/{quote(arguments.engine, safe='')}/drain"
        if arguments.action == "undrain":
            show([admin.ask("DELETE", path)])
            return 0
        return _drain(admin, path, arguments.wait)
    except (ConfigError, SecretError, AdminError) as error:
        print(f"warmroute engines: {error}", file=sys.stderr)
        return 2


class Admin:
    """The admin listener of one proxy."""

    def __init__(self, url: str, key: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise AdminError(f"{url!r} is no http address")
        self._url = url.rstrip("/")
        self._key = key

    def ask(self, method: str, path: str) -> Any:
        """A call of `/admin/engines`."""
        request = urllib.request.Request(f"{self._url}/admin/engines{path}", method=method)  # noqa: S310 - http, see above
        request.add_header("authorization", f"Bearer {self._key}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise AdminError(_reason(error)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise AdminError(f"{self._url} does not answer: {reason}") from None


def show(engines: list[dict[str, Any]]) -> None:
    """A line for each engine."""
    for engine in engines:
        by = ", ".join(engine["draining_since"])
        state = f"{engine['state']} (by the {by})" if by else str(engine["state"])
        print(f"{engine['id']:<24} {engine['role']:<11} {state:<32} {engine['running']:>5} running")
        if "warning" in engine:
            print(f"warning: {engine['warning']}", file=sys.stderr)


def _drain(admin: Admin, path: str, wait_s: float | None) -> int:
    engine = admin.ask("POST", path)
    show([engine])
    if wait_s is None:
        return 0
    deadline = time.monotonic() + wait_s
    while not engine["drained"]:
        if time.monotonic() > deadline:
            show([engine])
            return 1
        time.sleep(POLL_EVERY_S)
        engine = admin.ask("GET", path)
    print("drained")
    return 0


def _url(config: Config) -> str:
    if not config.proxy.admin_port:
        raise AdminError("the config has no admin_port: give --admin-url, which the proxy prints when it starts")
    host = config.proxy.admin_host
    return f"http://{f'[{host}]' if ':' in host else host}:{config.proxy.admin_port}"


def _key(config: Config) -> str:
    key = os.environ.get(KEY_VARIABLE)
    if key:
        return key
    if config.proxy.admin_key_sha256 is not None:
        raise AdminError(f"the config has a digest of the admin key only: put the key into {KEY_VARIABLE}")
    return Secrets(load_secret(config.secret_file, os.environ)).admin_key()


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the proxy answers {error.code}"
