"""Decisions only: no clock, randomness, I/O, logging or async in here. Time is an argument, `now_s`.

fingerprint   a prompt as a chain of hashes over its parts in template order
fleet, facts  what is placed, and on what
index         which cache holds which prefix: a bounded prediction
tiers         where a cached prefix lies (device, host, storage), and what using it from there costs
load          what each worker is busy with, and whether it can be used
choices       what could serve a model, and what of that one request may use
bytes_per_token   how long a model's tokens are
affinity      where lineages and sessions were last served
traffic       how busy the fleet has been lately: decaying sums
prices        what placing a request costs everybody else
placement     one cost in seconds, and the decision with its reasons
ticket        what a dispatched attempt has raised, until it ends
router        composes them; the one object that the server uses
record, recorded   the format of a record of all its calls; a router that writes one, and a playback
entry, usage, losses, receipt   what a request becomes in the ledger and in its receipt
"""
