"""Ready-made comparisons: a trace of its own and a list of runs for each.

A scenario says what to run. It runs nothing, and holds no figures.

scenario    the values: `Scenario`, `Run`
by_name     the scenario of a name
pd          the same GPUs, aggregated or split into prefill and decode workers
regions     agents on four regions, with and without a header that names the session
"""
