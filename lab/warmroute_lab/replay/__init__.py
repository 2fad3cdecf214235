"""The replay: runs traces through placement policies on a virtual clock, over the engine's model of its scheduler.

It opens no socket, and reads a real clock only for the CPU time that it reports. The production policy is the same
`core.Router` that a proxy runs.
"""
