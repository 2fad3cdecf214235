"""The embedded engine: SGLang's HTTP surface over a model of its scheduler and cache. No GPU, and no SGLang in it.

The engine answers as SGLang does, but runs no language model, and says so (`/server_info`: `"engine":
"warmroute-embedded"`). `model/radix.py` models the cache, `model/model.py` the scheduler; the other modules serve this
model over HTTP. The engine never imports the proxy.
"""
