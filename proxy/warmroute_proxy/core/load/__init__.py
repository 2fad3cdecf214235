"""What each worker is busy with, how fast it is, and whether it can be used.

The package knows no models, roles or costs: placement does. `WorkerLoad` holds the other objects of a worker.
"""
