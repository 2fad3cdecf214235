"""`warmroute ask`: prints an answer of the admin port unchanged, for containers without curl."""

import sys
from argparse import Namespace

from warmroute_cli.asking import admin_apis


def run(arguments: Namespace) -> int:
    """Print the answers. Exit status 0: printed; 1: no line has the text; 2: no request was sent."""
    path = arguments.path if arguments.path.startswith("/") else f"/{arguments.path}"
    lines = [line for admin in admin_apis(arguments).values() for line in admin.text(path).splitlines()]
    found = [line for line in lines if arguments.only in line]
    if not found:
        print(f"warmroute ask: no line of {path} has {arguments.only!r}", file=sys.stderr)
        return 1
    print("\n".join(found))
    return 0
