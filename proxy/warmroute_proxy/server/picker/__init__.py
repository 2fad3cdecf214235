"""The endpoint picker of a gateway (`warmroute epp`): requests and answers as messages of Envoy's external processing.

The picker passes requests to the public endpoint, like an HTTP listener. Placement and accounting happen there as for
all requests. The picker never opens a connection to the engine that answers; the gateway does.
"""
