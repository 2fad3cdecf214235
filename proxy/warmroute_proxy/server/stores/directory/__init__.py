"""Tenants and API keys in the database: what proxies know of them, and what operators change.

Each kind of record has a number that rises with each change, and each record the number of its last one, so
that a process reads by one question whether something has changed, and then what. No request waits for it.
"""
