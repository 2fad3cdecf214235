"""`warmroute doctor`: what a machine has, what a plan or a proxy's configuration lacks on it, and what to do.

Facts and their judgement are `warmroute_backend.doctor`'s; here are what needs the proxy, and the terminal.

arguments  the options
command    from options to findings, text or JSON
health     `warmroute health`: whether the proxy of a config answers here
proxies    a proxy's configuration: its problems, its engines, its limits against the system's
"""
