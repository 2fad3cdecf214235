"""The durable record of turns: the event loop writes a journal, and a thread folds it into an SQLite file.

This package never computes a price or a usage. It stores entries, finds them and adds them up. It knows nothing of
requests: a callback says when an entry is durable.
"""
