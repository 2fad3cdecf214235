"""The doctor: what this machine has, what keeps a plan from running on it, and what to do about each problem.

A *plan* is the planner's deployment of SGLang (`plan.toml`). The functions that read facts take a root folder, so that
tests can pass the files of another machine. A fact that cannot be read is `None`, never a guess. The functions that
judge facts are pure.
"""
