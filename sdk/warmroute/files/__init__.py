"""Files that a user got from others: what they are, how large they become, and what is in them, is nobody's promise.

A command that is given a file opens it here, and nowhere else.
"""
