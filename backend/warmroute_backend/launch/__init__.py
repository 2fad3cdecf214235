"""The launcher: runs a node's part of a plan, and keeps it up. It knows engines; the proxy is just another program.

The launcher needs Linux: /proc and file descriptors of processes. The modules that decide (states, back-off,
comparison, progress) are pure. The others start, watch, wait for and end processes.
"""
