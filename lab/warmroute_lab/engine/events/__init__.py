"""KV events: what enters and leaves the caches of an engine, as SGLang publishes it.

The schedulers call a recorder; nothing here changes a cache.
"""
