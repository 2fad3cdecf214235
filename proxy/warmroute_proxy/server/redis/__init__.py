"""Short-lived state that proxies share in Redis or Valkey, on one server or one with replicas.

The state is kept for seconds or minutes, and nothing depends on it alone: while the server is away, each process goes
on by itself. Each call has a deadline. Scripts use commands that Redis 7.0 and Valkey have.
"""
