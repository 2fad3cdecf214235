"""The `warmroute` command.

The command composes sdk, proxy, backend and lab. It holds no logic of a server: its subcommands read options, start
processes, and print results. Of those four, only the lab imports parts of this package.
"""
