"""Copies of a router: one in each of several processes, and one that a record plays again.

This package never transports or stores bytes: `server.processes` and `server.ledger` do.
"""
