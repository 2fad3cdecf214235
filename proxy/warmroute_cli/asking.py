"""Whom `usage`, `receipts` and `engines` ask: a proxy by its config, an `up` fleet, or what the environment names."""

import os
from argparse import Namespace
from typing import Final

from warmroute_cli import running
from warmroute_cli.api import Api, ApiError
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.base.secrets import Secrets, load_secret

KEY_VARIABLE: Final = "WARMROUTE_ADMIN_KEY"
NO_FLEET: Final = "no fleet runs in {}"


def tenants_api(arguments: Namespace) -> Api:
    """What a tenant asks: the address and key of the environment, else the fleet that runs here. Raises: ApiError."""
    url, key = os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_API_KEY")
    if url and key:
        return Api(url, key)
    fleet = running.find(arguments.state_dir)
    if fleet is None:
        where = NO_FLEET.format(arguments.state_dir)
        raise ApiError(f"{where}: name a proxy by OPENAI_BASE_URL and OPENAI_API_KEY, or start `warmroute up`")
    return Api(f"{fleet.addresses[0].url}/v1", fleet.api_key)


def admin_apis(arguments: Namespace) -> dict[str, Api]:
    """Region -> the admin listener of its proxy: of the config's, else of each one of the fleet that runs here.

    Raises: ApiError, ConfigError, SecretError.
    """
    if arguments.config is not None:
        config = load_config(arguments.config)
        return {config.proxy.region: Api(arguments.admin_url or _admin_url(config), _admin_key(config))}
    fleet = running.find(arguments.state_dir)
    if fleet is None:
        raise ApiError(
            f"{NO_FLEET.format(arguments.state_dir)}: name a proxy by --config FILE, or start `warmroute up`"
        )
    return {address.region: Api(address.admin_url, fleet.admin_key) for address in fleet.addresses}


def _admin_url(config: Config) -> str:
    if not config.proxy.admin_port:
        raise ApiError("the config has no admin_port: give --admin-url, which the proxy prints when it starts")
    host = config.proxy.admin_host
    return f"http://{f'[{host}]' if ':' in host else host}:{config.proxy.admin_port}"


def _admin_key(config: Config) -> str:
    key = os.environ.get(KEY_VARIABLE)
    if key:
        return key
    if config.proxy.admin_key_sha256 is not None:
        raise ApiError(f"the config has a digest of the admin key only: put the key into {KEY_VARIABLE}")
    return Secrets(load_secret(config.secret_file, os.environ)).admin_key()
