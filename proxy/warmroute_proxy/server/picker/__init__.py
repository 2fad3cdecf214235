"""The endpoint picker of a gateway (`warmroute epp`): requests and answers as Envoy's external processing brings them.

It places nothing and accounts for nothing itself: what comes goes to the public endpoint, like what an HTTP listener
reads, and from there the way of all requests. It never opens a connection to the engine that answers; the gateway does.

    listener        the gRPC server, with its health
    admin           what is answered over HTTP
    stream          one request and its answer, as messages
    answer          what the gateway is sent, the answer above all
    exchange        the answer to a client, as the request path writes it
    first_reads     turns of streams without a key
    heads           heads of requests, of clients and for engines
    picks           fallbacks, and which engine has answered
    addresses       `ip:port` of engines
    wire            the messages
"""
