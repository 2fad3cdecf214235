"""What a request becomes in the ledger and in its receipt: counts, losses, prices, states.

It never writes a file and never knows a tenant's key: `server.ledger` does both.

usage_fields   token counts, as engines report them and as settled
usage          merges the reports of a turn's legs into one set of counts
plausible      which counts cannot be true
losses         why prompt tokens were not cached
entry          the ledger entry of one request
entry_steps    the transitions of an entry
receipt        the receipt, and the usage object that carries it
price_books    the prices of a model from a date on
idempotency    recorded answers by idempotency key
engine_counts  what an engine has itself counted, by hour
engine_turns   what an entry says of each engine that computed it
reconciliation receipts against these counts
"""
