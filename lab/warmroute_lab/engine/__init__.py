"""The embedded engine: SGLang's HTTP surface over a model of its scheduler and cache. No GPU, and no SGLang in it.

It answers as an engine of that protocol answers, computes nothing, and says so (`/server_info`: `"engine":
"warmroute-embedded"`). Read `model/radix.py` and `model/model.py` for the idea; the rest carries it over HTTP. It
never imports the proxy.
"""
