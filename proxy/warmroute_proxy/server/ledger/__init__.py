"""The durable record of turns: the event loop writes a journal, and a thread moves its records to an SQLite file.

This package never computes a price or a usage. It stores entries, finds them and adds them up. It knows nothing about
requests: when an entry is durable, it calls a function that came with the entry.
"""
