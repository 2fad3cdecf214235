"""`warmroute launch`: runs a node's part of a plan with the proxy in front, and looks after it.

The processes themselves are `warmroute_backend.launch`'s; here are what needs the proxy, and the terminal.

arguments  the options
command    from options to an action
start      what runs: checks, the proxy's program, the launcher
drains     asks the proxy to drain an engine
actions    status, stop, restart, logs
"""
