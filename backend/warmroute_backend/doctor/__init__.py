"""The doctor: what a machine has, and what of it keeps a plan from running, with what to do about it.

Readers take a root folder, so that tests give them the tree of another machine. What they cannot read is `None`, and
never a guess. Judgement is pure.
"""
