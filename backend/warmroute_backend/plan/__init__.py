"""The planner: turns a model, GPUs and traffic into a deployment of SGLang that fits, with every choice explained.

It is pure: no clock, no I/O, no randomness. Equal requests give equal plans. Callers read the files of a model and
write those of a plan. It knows SGLang 0.5.23; formulas name the lines that they are from.
"""
