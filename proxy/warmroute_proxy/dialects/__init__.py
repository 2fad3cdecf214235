"""Checks and translates the requests and answers of each API. Pure, like `core`: no clock, no I/O, no async.

The package never sees a connection, a tenant or an engine. It gets raw JSON members, and says which of them may reach
an engine.
"""
