"""What each worker is busy with, how fast it is, and whether it can be used.

It never knows models, roles or costs: those are of placement. `WorkerLoad` has all others of one worker as fields.
"""
