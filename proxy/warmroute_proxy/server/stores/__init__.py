"""State that several proxies share: the ledger of a fleet in PostgreSQL, and budgets.

Nothing here is on the path of a request. A thread with its own event loop talks to the database, each call with a
deadline. While the database is away, the journal and the ledger file of each proxy keep what has not been sent.
"""
