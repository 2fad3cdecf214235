"""Runs the action of `warmroute launch`. Exit status 0: done, 1: a process failed or is down, 2: not done."""

import argparse

from warmroute_backend.launch.program import LaunchError
from warmroute_cli.launch import actions
from warmroute_cli.launch.launch_options import ACTIONS


def launch(arguments: argparse.Namespace) -> int:
    if arguments.what in ACTIONS:
        return _action(arguments)
    if arguments.name is not None:
        raise LaunchError(f"{arguments.what!r} is not an action; actions are {', '.join(ACTIONS)}")
    from warmroute_cli.launch.start import start

    return start(arguments)


def _action(arguments: argparse.Namespace) -> int:
    named = arguments.what in {"restart", "logs"}
    if named and arguments.name is None:
        known = ", ".join(actions.names(arguments.state_dir))
        raise LaunchError(f"{arguments.what} of what? give one of {known or 'the processes of a launch'}")
    if not named and arguments.name is not None:
        raise LaunchError(f"{arguments.what} takes no name")
    code: int = getattr(actions, arguments.what)(arguments)
    return code
