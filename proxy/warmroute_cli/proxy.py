"""`warmroute proxy` and `warmroute epp`: run a proxy or an endpoint picker, check its config, or print the schema."""

import json
import sys
from argparse import Namespace


def run(arguments: Namespace) -> int:
    """Run `warmroute proxy`. Exit status 0: done; 1: a check or probe has failed; 2: not done."""
    if arguments.schema:
        if arguments.check or arguments.probe or arguments.processes is not None:
            arguments.parsed_by.error("--schema goes with no other option")
        from warmroute_proxy.server.base.config_schema import document_schema

        print(json.dumps(document_schema(), indent=2))
        return 0
    if arguments.config is None:
        arguments.parsed_by.error("the following arguments are required: --config")
    if arguments.probe and not arguments.check:
        print("warmroute proxy: --probe goes with --check", file=sys.stderr)
        return 2
    from warmroute_proxy.server.main import serve

    return serve(arguments.config, arguments.check, arguments.processes, probe_servers=arguments.probe)


def run_picker(arguments: Namespace) -> int:
    """Run an endpoint picker. Exit status 0: done; 2: not done."""
    from warmroute_proxy.server.main import serve

    return serve(arguments.config, arguments.check, arguments.processes, picker=True)
