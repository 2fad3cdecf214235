"""`warmroute replay`: options, runs and output of the command. The simulation is in `warmroute_lab.replay`.

A replay simulates proxies and engines, and starts neither.
"""
