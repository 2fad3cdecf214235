"""The engine at work: requests go to schedulers, whose steps pass at the pace of the wall clock.

The model decides what caches contain and how long steps take.
"""
