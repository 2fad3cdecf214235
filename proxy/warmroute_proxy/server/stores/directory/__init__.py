"""Tenants and API keys in the database: what proxies know of them, and what operators change.

Each kind of record has a number that rises with each change, and each record has the number of its last change. So a
process learns by one query whether something has changed, and then what. No request waits for that.
"""
