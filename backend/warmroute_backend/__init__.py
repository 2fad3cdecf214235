"""Real SGLang, and machines that run it. The package imports neither the proxy nor the lab.

plan      plans a deployment of SGLang: what fits, and why; pure
launch    runs and watches a node's part of a plan
doctor    what a machine has, and what a plan or a proxy needs of it
sglang    runs the real SGLang on a CPU, for tests and the demo
costs     what steps of an engine cost, in seconds
engine    starts the lab's embedded engine, by the name that charts use
"""
