"""Builds the record of a request in the ledger and in its receipt: counts, losses, prices, states.

This package never writes a file and never knows a tenant's key: `server.ledger` does both.
"""
