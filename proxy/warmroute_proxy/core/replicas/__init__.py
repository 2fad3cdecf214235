"""A router in more than one copy: among several processes, and again from a record.

It never transports or stores bytes: `server.processes` and `server.ledger` do.
"""
