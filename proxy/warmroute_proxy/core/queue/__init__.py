"""Which requests wait, in which order they go, and how much each tenant and each retry may use.

This package never holds a connection or a timer: the server's admission holds them, and calls these rules.
"""
