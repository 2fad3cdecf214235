"""The endpoint picker of a gateway (`warmroute epp`), which speaks Envoy's external processing (ext_proc) over gRPC.

The picker passes requests to the public endpoint, as an HTTP listener does, and the endpoint places and accounts for
them as for all requests. But the connection to the engine that answers is opened by the gateway, never by the picker.
"""
