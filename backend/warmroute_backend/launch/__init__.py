"""The launcher: starts the programs of a plan that run on this node, and restarts those that fail.

A *plan* is the planner's deployment of SGLang (`plan.toml`). The launcher knows the states of engines; the proxy is
only another program to run. The launcher needs Linux, for /proc and for file descriptors of processes. The modules that
decide (states, back-off, comparison, progress) are pure. The other modules start, watch and end processes.
"""
