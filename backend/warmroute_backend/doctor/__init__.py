"""The doctor: what this machine has, what keeps a plan from running on it, and what to do about each problem.

The functions that read facts take a root folder, so that tests can give them the tree of another machine. A fact that
cannot be read is `None`, never a guess. The judgement of the facts is pure.
"""
