"""Finds the proxy that a command asks: by a config, by the environment, or in a fleet that `warmroute up` started."""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from warmroute_cli import running
from warmroute_cli.api import Api, ApiError
from warmroute_proxy.server.base.config import Config, authority
from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets, load_secret
from warmroute_proxy.server.control.usage_question import read_question

if TYPE_CHECKING:
    from warmroute_cli.past import PastFleet

KEY_VARIABLE: Final = "WARMROUTE_ADMIN_KEY"
NO_FLEET: Final = "no fleet runs in {}"
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def tenants_api(arguments: Namespace) -> "Api | PastFleet":
    """Find the API that answers a tenant's questions. Raises: ApiError.

    It is the first of these that exists: the address and key in the environment, the fleet that runs in the state
    directory, the ledgers (records of turns) that ended fleets left there, a fleet that runs elsewhere.
    """
    url, key = os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_API_KEY")
    if url and key:
        return Api(url, key)
    where = NO_FLEET.format(arguments.state_dir)
    fleet = running.running_in(arguments.state_dir)
    if fleet is None:
        from warmroute_cli.past import PastFleet

        past = PastFleet(arguments.state_dir)
        if past.is_there:
            print(f"warmroute: {where}; these are the ledgers that the last ones left", file=sys.stderr)
            return past
        fleet = running.find_named(arguments.state_dir)
    if fleet is None:
        raise ApiError(f"{where}: name a proxy by OPENAI_BASE_URL and OPENAI_API_KEY, or start `warmroute up`")
    return Api(f"{fleet.addresses[0].url}/v1", fleet.api_key)


def admin_apis(arguments: Namespace) -> dict[str, Api]:
    """Region -> admin listener: with `--config`, of the config's proxy only; otherwise of the running fleet's proxies.

    Raises: ApiError, ConfigError, SecretError.
    """
    if arguments.config is not None:
        config = load_config(arguments.config)
        return {config.proxy.region: Api(arguments.admin_url or _admin_url(config), _admin_key(config))}
    fleet = running.find_named(arguments.state_dir)
    if fleet is None:
        raise ApiError(
            f"{NO_FLEET.format(arguments.state_dir)}: name a proxy by --config FILE, or start `warmroute up`"
        )
    return {address.region: Api(address.admin_url, fleet.admin_key) for address in fleet.addresses}


class OperatorsApi:
    """Answers calls as the API of `tenants_api` does, but about all tenants, or about the given one."""

    def __init__(self, admin: Api, tenant: str | None) -> None:
        self._admin = admin
        self._of_tenant = {"tenant": tenant} if tenant else {}

    def ask(self, path: str, parameters: Mapping[str, str] | None = None, *, session: str = "") -> Any:
        """Answer a call to `/usage` or `/usage/receipts`. Raises: ApiError."""
        route = "/admin/usage" if path == "/usage" else "/admin/view/receipts"
        return self._admin.ask(route, {**(parameters or {}), **self._of_tenant}, session=session)


def admin_of(config: Config) -> Api:
    """The admin listener of a config's proxy. Raises: ApiError, SecretError."""
    return Api(_admin_url(config), _admin_key(config))


def _admin_url(config: Config) -> str:
    if not config.proxy.admin_port:
        raise ApiError("the config has no admin_port: give --admin-url, which the proxy prints when it starts")
    host = config.proxy.admin_host
    return f"http://{authority(host, config.proxy.admin_port)}"


def _admin_key(config: Config) -> str:
    key = os.environ.get(KEY_VARIABLE)
    if key:
        return key
    if config.proxy.admin_key_sha256 is not None:
        raise ApiError(f"the config has a digest of the admin key only: put the key into {KEY_VARIABLE}")
    return Secrets(load_secret(config.secret_file, os.environ)).admin_key()


def since_parameter(text: str, now: datetime) -> str:
    """The value of the proxy's query parameter for `--since`. Raises: ApiError, if the proxy would refuse the text.

    A word for a day becomes the midnight at which the day began, in local time. This midnight may have another UTC
    offset than `now`, if the clocks changed since. Any other text is left for the proxy to read.
    """
    days = _days_ago(text.strip().lower(), now.weekday())
    if days is None:
        try:
            read_question([("since", text)], ("since",), now.timestamp())
        except Refusal as error:
            raise ApiError(f"{error.message}; or today, yesterday, or a day of the week like monday") from None
        return text
    day = (now - timedelta(days=days)).date()
    return f"{datetime(day.year, day.month, day.day).timestamp():.0f}"  # noqa: DTZ001 - local time


def _days_ago(word: str, today: int) -> int | None:
    if word in {"today", "yesterday"}:
        return int(word == "yesterday")
    found = [number for number, name in enumerate(_WEEKDAYS) if len(word) >= 3 and name.startswith(word)]
    return (today - found[0]) % 7 if found else None
