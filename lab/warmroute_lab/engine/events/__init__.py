"""KV events: what enters and leaves the caches of an engine, as SGLang publishes it.

The schedulers call a recorder; nothing here changes a cache.

kv_events       the events, the hashes of pages, and the recorder of one rank
kv_publisher    the ZeroMQ sockets of an engine, with replay of recent batches
"""
