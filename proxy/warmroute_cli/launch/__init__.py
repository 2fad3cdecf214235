"""`warmroute launch`: starts and supervises one node's part of a plan, with the proxy in front.

`warmroute_backend.launch` runs the processes. This package has the proxy's part, and the output.
"""
