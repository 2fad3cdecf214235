"""All I/O of the proxy: protocol, relay, upstream connections, stores, metrics, pages. Decisions are made in `core`."""
