"""State of some seconds or minutes that proxies share in Redis or Valkey: one server, or one with replicas.

Nothing here is kept for long, and nothing depends on it alone: while the server is away, each process goes on by
itself. Each call has a deadline. Scripts use commands that Redis 7.0 and Valkey have.
"""
