"""HTTP/1.1 on the client's side: sockets, framing, limits, TLS, and the exchange of a request for its answer.

It knows no route, tenant or engine and imports nothing of intake: an `Endpoint` decides what becomes of a request. It
never parses HTTP on its own: httptools does, for each byte.

- answer_reader: one client of a recorded answer, at its own pace
- arrival: accepts connections, and shakes hands over TLS
- asgi: runs the control plane's ASGI application on the same connections
- cross_origin: which pages in browsers may read answers
- authorities: trusted authorities of outgoing TLS connections
- body_memory: the budget of all bodies, and what a request has reserved of it
- crowding: what a full listener closes, counted and logged
- exchange: one request, its answer, and the `Endpoint` that handles them
- frames: the messages of a WebSocket from bytes, within limits
- header_lines: decodes header lines, and keeps those that it has seen
- http1: one client connection: order of answers, flow control, deadlines
- incoming_body: a body that comes in pieces
- listener: a listening socket, its sweep and its shutdown
- open_connections: the connections of a listener, and what they share
- request_starts: lets requests begin in order, some in each iteration of the loop
- read_ahead: what was read behind a request that is being answered
- read_slices: reads large bodies in slices
- request_reader: requests from bytes, within limits
- shared_bytes: a large body in memory that another process can read
- tls: certificate and key of a listener
- tls_buffers: the buffers of TLS connections that were used for much
- websocket: one client connection after its upgrade to a WebSocket
"""
