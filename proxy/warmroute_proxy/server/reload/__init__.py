"""Reloads of the config: a new config is read, checked, compared with that in force, and applied whole or not at all.

In a process, a reload never waits for an engine, a store or another process. When it returns, the new config is in
force there. Only `orders` waits for all processes.
"""
