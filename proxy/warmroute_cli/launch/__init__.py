"""`warmroute launch`: runs a node's part of a plan with the proxy in front, and looks after it.

The processes themselves are `warmroute_backend.launch`'s; here are what needs the proxy, and the terminal.
"""
