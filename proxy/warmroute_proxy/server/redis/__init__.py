"""Short-lived state that proxies share in Redis or Valkey, on one server or one with replicas.

The state is kept for seconds or minutes, and no request needs it: while the server is away, each process goes on alone.
Each call has a deadline. The Lua scripts use commands that Redis 7.0 and Valkey have.
"""
