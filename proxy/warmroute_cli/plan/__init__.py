"""`warmroute plan`: reads what a plan is made of, has it made and sized, and writes its files.

It holds no formula: the planner is `warmroute_backend.plan`, the engine model of the sizing is that of the replay.

arguments   options
inputs      model folders, tables of GPUs and plan files, read from disk
traffic     a trace from average figures
sizing      a plan over the replay's engine model: latency, utilisation, bottleneck
targets     what its traffic is to reach
search      which plans are played, and which one is taken
goodput     the most requests a second that a plan serves within its targets
sized_page  the section of the page about them
costs       what tokens cost on a plan
kinds       several kinds of GPUs, compared by that
command     the command itself
"""
