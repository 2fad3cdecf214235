"""Scheduler and cache of one rank, as a pure model on a virtual clock. The replay uses it too.

No sockets, no wall clock, no asyncio, no HTTP. Only `hicache` touches files, for the storage tier's `file` backend.
"""
