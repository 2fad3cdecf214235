"""Ready-made comparisons: each has a trace and a list of runs.

A scenario says what to run. It runs nothing, and holds no figures.
"""
