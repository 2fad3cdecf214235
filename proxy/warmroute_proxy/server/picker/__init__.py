"""The endpoint picker of a gateway (`warmroute epp`): requests and answers as Envoy's external processing brings them.

It places nothing and accounts for nothing itself: what comes goes to the public endpoint, like what an HTTP listener
reads, and from there the way of all requests. It never opens a connection to the engine that answers; the gateway does.
"""
