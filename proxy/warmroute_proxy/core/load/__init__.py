"""Tracks what each worker is busy with, how fast it is, and whether it can be used.

Only placement knows models, roles and costs; this package does not. `WorkerLoad` holds a worker's other load objects.
"""
