"""Ready-made comparisons: each has a trace and a list of runs.

A scenario only says what to run: it runs nothing and has no results.
"""
