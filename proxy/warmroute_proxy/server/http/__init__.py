"""HTTP/1.1 on the client's side: sockets, framing, limits, TLS, and the exchange of a request for its answer.

It knows no route, tenant or engine and imports nothing of intake: an `Endpoint` decides what becomes of a request. It
never parses HTTP on its own: httptools does, for each byte.
"""
