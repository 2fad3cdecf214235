"""Ready-made comparisons: a trace of its own and a list of runs for each.

A scenario says what to run. It runs nothing, and holds no figures.
"""
