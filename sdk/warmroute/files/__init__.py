"""Reads files that a user got from others, and of which type, unpacked size and content may be anything.

Every command opens its input files with this package.
"""
