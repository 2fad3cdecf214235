"""The replay: traces through placement policies on a virtual clock, over the engine's own model of its scheduler.

It opens no socket and reads no clock but for the CPU time that it reports. The policy of production is the same
`core.Router` that a proxy runs.
"""
