"""`warmroute replay`: its options, its runs, its output. What is simulated is in `warmroute_lab.replay`.

It starts no proxy and no engine.
"""
