"""The launcher: runs a node's part of a plan, and keeps it up. It knows engines; the proxy is one more program to it.

It works on Linux, by /proc and descriptors of processes. Its decisions (states, back-off, comparison, progress) are
pure modules; the rest starts, looks, waits and ends.
"""
