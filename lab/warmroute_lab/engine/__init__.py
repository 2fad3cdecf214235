"""The embedded engine: SGLang's HTTP surface over a model of its scheduler and cache. No GPU, and no SGLang in it.

The engine answers as an engine of that protocol does, computes no model, and says so (`/server_info`: `"engine":
"warmroute-embedded"`). `model/radix.py` and `model/model.py` have the model of cache and scheduler; the other modules
serve it over HTTP. The engine never imports the proxy.
"""
