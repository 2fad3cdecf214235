"""Lists the errors that `warmroute` shows as a message, without a traceback."""

from typing import Final

from warmroute_backend.launch.program import LaunchError
from warmroute_backend.plan.errors import PlanError
from warmroute_cli.api import ApiError
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.secrets import SecretError
from warmroute_proxy.server.stores.store_state import StoreError

EXPECTED: Final = (ApiError, ConfigError, LaunchError, PlanError, SecretError, StoreError)
