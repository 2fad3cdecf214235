"""Scheduler and cache of one rank, as a pure model on a virtual clock. The replay uses it too.

No sockets, no wall clock, no asyncio, no HTTP. Only `hicache` touches files, for the storage tier's `file` backend.

model      the scheduler: steps, their durations, and the events they bring
prefill    the chunk of a step: which prompts, how many tokens each
batch      the sequences that decode together
work       the values: a request, its phase, costs, totals
pool       KV pages: reserved, cached, free
radix      the radix cache of pages
tiers      host and storage tiers below the device
hicache    settings of the tiers, and the `file` backend
prompt     from a body to text, tokens and page keys
"""
