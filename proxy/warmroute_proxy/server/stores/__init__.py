"""State that several proxies share: the ledger of a fleet in PostgreSQL, and budgets.

Nothing here is on the path of a request. A thread with an event loop of its own talks to the database, each call with
a deadline. While the database is away, the journal and the ledger file of each proxy keep what is to be sent.
"""
