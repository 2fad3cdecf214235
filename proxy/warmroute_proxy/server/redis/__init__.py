"""State of some seconds or minutes that proxies share in Redis or Valkey: one server, or one with replicas.

Nothing here is kept for long, and nothing depends on it alone: while the server is away, each process goes on by
itself. Each call has a deadline. Scripts use commands that Redis 7.0 and Valkey have.

    calls    the connections, their deadline, and what happens while nothing answers
    limits   of all proxies: by the minute, taken in slices; at once, held for some seconds
    markers  which process answers, or has answered, a request with an `Idempotency-Key`
    nonces   forward tokens that a proxy has accepted
    call_markers  asks for these before such a request begins, and what is refused
"""
