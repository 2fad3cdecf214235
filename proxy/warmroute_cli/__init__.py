"""The `warmroute` command.

It composes sdk, proxy, backend and lab. Of these, only the lab imports a part of it: what reads options, prints tables
and starts processes. It holds no logic of a server: commands read options, start processes, and print results.
"""
