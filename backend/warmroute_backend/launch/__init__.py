"""The launcher: runs a node's part of a plan, and keeps it up. It knows engines; the proxy is one more program to it.

It works on Linux, by /proc and descriptors of processes. Its decisions (states, back-off, comparison, progress) are
pure modules; the rest starts, looks, waits and ends.

errors      LaunchError
states      the life of a process, as a table, and when it is started again
engine_kinds  what stands for the engines of a plan
program     what is to run
topology    the programs of a node's part of a plan
fast_start  where weights come from at a restart
affinity    NUMA nodes and network cards of GPUs
start_log   what the log of a starting engine says
start_times  what each part of a start has cost
hangs       whether an engine computes, by its metrics
comparison  reports of engines against the plan, and against each other
identity    which process is meant, and signals to it alone
state_file  what runs, on disk
adoption    what an earlier launcher has left running
readiness   ports and programs, before a start
probes      small questions to a process
logs        rotation and tails
nodes       reports of the plan's launchers, and when all start
node_reports  the same over HTTP
orders      what operators order
waker       waits that a signal ends
process     one launched process
launcher    all of them
"""
