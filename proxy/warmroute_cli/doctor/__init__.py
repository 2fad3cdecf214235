"""`warmroute doctor`: what a machine has, what a plan or a proxy's configuration lacks on it, and what to do.

Facts and their judgement are `warmroute_backend.doctor`'s; here are what needs the proxy, and the terminal.
"""
