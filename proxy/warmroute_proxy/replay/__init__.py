"""The replay: traces through placement policies on a virtual clock, over the engine's own model of its scheduler.

It opens no socket and reads no clock but for the CPU time that it reports. The policy of production is the same
`core.Router` that a proxy runs.

trace, loaders                  requests, and the files they are read from
made_up, agents, tool_calls, forked   generated traces
setup                           one run: fleet, policy, load
simulation, split               the event loop, and that of a fleet of prefill and decode workers
fleet                           workers and their load; a store that they share
fleet_file                      a file of workers that differ
policy                          the interface of placement policies
production, waiting             the policy of production, and its queue
tenants                         whose sessions they are, and the figures of each tenant
hints                           what clients say of when their sessions return
baselines                       published and plain policies
scenarios                       ready-made comparisons
results, page, plot             the figures, an HTML page of them, its plots
record                          decisions of a proxy's record, made again
"""
