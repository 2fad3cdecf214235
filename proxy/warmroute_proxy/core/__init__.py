"""Decisions only: no clock, randomness, I/O, logging or async in here. Time is an argument, `now_s`.

fingerprint   a prompt as a chain of hashes over its parts in template order
fleet, facts  what is placed, and on what
index         which worker has computed which prefix: a bounded prediction
load          what each worker is busy with, and whether it can be used
affinity      where lineages and sessions were last served
placement     one cost in seconds, and the decision with its reasons
router        composes them; the one object that the server uses
entry, usage, losses, receipt   what a request becomes in the ledger and in its receipt
"""
