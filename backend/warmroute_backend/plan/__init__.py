"""The planner: turns a model, GPUs and traffic into a deployment of SGLang that fits, with every choice explained.

The planner is pure: no clock, no I/O, no randomness. Equal requests give equal plans. Its callers read a model's files
and write a plan's files. The rules are those of SGLang 0.5.23; each formula names its source lines.
"""
