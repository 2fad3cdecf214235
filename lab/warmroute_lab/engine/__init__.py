"""The embedded engine: SGLang's HTTP surface over a model of its scheduler and cache. No GPU, and no SGLang in it.

It answers as an engine of that protocol answers, computes nothing, and says so (`/server_info`: `"engine":
"warmroute-embedded"`). Read `model/radix.py` and `model/model.py` for the idea; the rest carries it over HTTP. It
never imports the proxy. From top to bottom, each imports only those below it:

server      the process: listens, announces its address, stops
routes      HTTP paths and their handlers
serving     the engine: requests on schedulers, at the pace of the wall clock
request     from a request body to an answer
settings    the options that an engine is started with
events      KV events, and their publication over ZeroMQ
model       scheduler and cache, without I/O
http        HTTP/1.1, fields of bodies, errors
"""
