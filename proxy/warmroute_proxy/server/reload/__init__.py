"""Another config while the proxy runs: read, checked, compared with the one in force, and applied whole or not at all.

A reload never waits for an engine, a store or another process: what it applies holds when it returns.
"""
