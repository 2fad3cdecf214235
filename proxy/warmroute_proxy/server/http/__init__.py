"""HTTP/1.1 on the client's side: sockets, framing, limits, TLS, and the exchange of a request for its answer.

This package knows no route or engine and imports nothing of intake: an `Endpoint` decides how a request is handled. All
bytes of HTTP are parsed by httptools.
"""
