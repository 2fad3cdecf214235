"""All I/O of the proxy: protocol, request path, connections to engines, stores, metrics, pages.

Decisions are made in `core`, which never waits. Which room may import which others is a contract in pyproject.toml.
"""
