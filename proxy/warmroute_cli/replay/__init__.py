"""`warmroute replay`: its options, its runs, its output. What is simulated is in `warmroute_lab.replay`.

It starts no proxy and no engine.

arguments   the options
command     the runs of a command line, and the table, JSON and page of their results
"""
