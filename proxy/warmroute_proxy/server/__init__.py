"""All I/O of the proxy: protocol, request path, connections to engines, stores, metrics, pages.

Decisions are made in `core`, which never waits. A contract in pyproject.toml says which package may import which.
"""
