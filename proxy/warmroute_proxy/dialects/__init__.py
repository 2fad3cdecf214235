"""Checks and translations of API dialects: requests and answers of each. Pure like `core`: no clock, I/O or async.

The package never sees a connection, a tenant or an engine. It gets raw JSON members, and says which may pass.
"""
