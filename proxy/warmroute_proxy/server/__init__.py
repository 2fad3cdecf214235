"""All I/O of the proxy: protocol, request path, connections to engines, stores, metrics, pages.

Decisions are made in `core`, which never waits. A room imports only those above it in this list:

    base            config, errors, metrics, secrets
    http            the clients' side of HTTP/1.1: listener, connection, exchange, TLS
    ledger          the journal, its folding into SQLite, recorded decisions
    intake          a request's body: parsed, fingerprinted, kept for the next one
    engines         the engines' side: connections, streams, probes, KV events, drains
    discovery       engines that the config does not name: files in a folder, SRV records
    dialects        requests of other APIs, translated on their way in and out
    processes       several processes of one proxy
    regions         the proxies of other regions
    redis           limits and markers that proxies share for seconds or minutes
    stores          the ledger of a fleet, budgets, and limits over all proxies
    reload          another config while the proxy runs
    request         the path of an inference request
    tracing         spans of requests, and the thread that exports them
    control         the control plane
    authentication  whose request it is
    endpoint        which request goes where
    admin_endpoint  the same of the admin listener
    routing         the router of a process: alone, recorded, or one of several
    build           the composition root
    check           what is wrong with a config, and what its servers answer
    picker          the endpoint picker of a gateway, in the place of the clients' listener
    main            the life of a process: start, sweep, probe, shutdown
"""
