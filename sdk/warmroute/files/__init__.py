"""Reads files that a user got from others. Their type, unpacked size and content may be anything.

Every command opens its input files with this package.
"""
