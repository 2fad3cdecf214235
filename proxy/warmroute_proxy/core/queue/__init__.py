"""Which requests wait, in which order they go, and how much each tenant and each retry may use.

It never holds a connection or a timer: the server's admission does, and calls these rules.
"""
