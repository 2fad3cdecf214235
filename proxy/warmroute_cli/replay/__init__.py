"""`warmroute replay`: its options, its runs, its output. The simulation is in `warmroute_lab.replay`.

A replay starts no proxy and no engine.
"""
