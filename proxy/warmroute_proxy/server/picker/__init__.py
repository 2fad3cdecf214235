"""The endpoint picker of a gateway (`warmroute epp`), which speaks Envoy's external processing (ext_proc) over gRPC.

The picker passes requests to the public endpoint, as an HTTP listener does. There they are placed and accounted for
like all requests. But the gateway, not the picker, opens the connection to the engine that answers.
"""
