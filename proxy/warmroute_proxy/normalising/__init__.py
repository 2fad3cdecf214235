"""Texts that coding agents put into a prompt and that spoil its prefix: named rules take them out. Pure like `core`.

An engine finds a cached prompt by its first tokens, so a number that changes with each request hides all that follows
it. A rule knows one such text by its form, and decides by that text alone: it has no memory of earlier turns, so the
same prefix in gives the same prefix out. Nothing else in a prompt is changed.
"""
