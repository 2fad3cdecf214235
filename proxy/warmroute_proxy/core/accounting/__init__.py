"""What a request becomes in the ledger and in its receipt: counts, losses, prices, states.

It never writes a file and never knows a tenant's key: `server.ledger` does both.
"""
