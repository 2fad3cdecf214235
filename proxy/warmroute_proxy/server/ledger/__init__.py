"""The durable record of turns: a journal in the event loop, folded into an SQLite file by a thread.

This room never computes a price or a usage; it stores entries, finds them and adds them up. It knows no requests: a
callback says when an entry is durable.
"""
