"""Makes copies of a router: one in each of several processes, or one that replays a record.

This package never transports or stores bytes: `server.processes` and `server.ledger` do that.
"""
