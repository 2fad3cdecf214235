"""The decisions of the proxy, and nothing else: where a request goes, how long it waits, what it costs.

No clock, randomness, I/O, logging or async in here: time is an argument, `now_s`. So recorded calls give the same
decisions again. A room imports only rooms above it in this list (a contract in pyproject.toml).

base         what the others are built on
prompt       a prompt as a chain of hashes, and what placement knows of a request
accounting   what a request becomes in the ledger and in its receipt
cache        which cache has which prefix, for how long, in which tier
load         what each worker is busy with, and whether it can be used
placement    where a request goes: costs, the decision, and the router, the one object that the server uses
queue        the order and the limits of requests for which there is no capacity
replicas     one router over several processes, and records of decisions
"""
