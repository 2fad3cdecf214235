"""`warmroute ask`: an answer of the admin port as it is, in a container that has no curl."""

import sys
from argparse import Namespace

from warmroute_cli.api import ApiError
from warmroute_cli.asking import admin_apis
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.secrets import SecretError


def run(arguments: Namespace) -> int:
    """Print the answers. 0: there are some; 1: no line has the text; 2: not asked."""
    path = arguments.path if arguments.path.startswith("/") else f"/{arguments.path}"
    try:
        lines = [line for admin in admin_apis(arguments).values() for line in admin.text(path).splitlines()]
    except (ConfigError, SecretError, ApiError) as error:
        print(f"warmroute ask: {error}", file=sys.stderr)
        return 2
    found = [line for line in lines if arguments.only in line]
    print("\n".join(found))
    return 0 if found else 1
