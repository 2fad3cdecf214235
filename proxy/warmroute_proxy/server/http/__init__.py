"""HTTP/1.1 on the client's side: sockets, framing, limits, TLS, and exchanges (a request paired with its answer).

This package knows neither routes nor engines and imports nothing of the package `intake`: an `Endpoint` decides how a
request is handled. All bytes of HTTP are parsed by httptools.
"""
