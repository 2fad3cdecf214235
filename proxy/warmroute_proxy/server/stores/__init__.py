"""State that several proxies share: the ledger of a fleet, tenants, keys and prices in PostgreSQL, limits in Redis.

A request waits for the database only if more of a budget has to be leased. A thread with its own event loop talks to
the database, each call with a deadline. While the database is away, the journal and the ledger file of each proxy keep
what has not been sent.
"""
