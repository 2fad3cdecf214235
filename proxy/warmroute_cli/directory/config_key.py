"""`warmroute key` without an action: a key for a [[tenant]] of a config, or the admin key of a proxy."""

import os
import sys
from argparse import Namespace

from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.secrets import SecretError, Secrets, load_secret, new_api_key


def run(arguments: Namespace) -> int:
    """Print it. 0: done, 2: not done."""
    if arguments.admin_of is not None:
        try:
            secret = load_secret(load_config(arguments.admin_of).secret_file, os.environ)
        except (ConfigError, SecretError) as error:
            print(f"warmroute: {error}", file=sys.stderr)
            return 2
        print(Secrets(secret).admin_key())
        return 0
    key, digest = new_api_key()
    print(f"API key, shown once:\n  {key}")
    print(f'for the [[tenant]] in the configuration:\n  key_sha256 = ["{digest}"]')
    return 0
