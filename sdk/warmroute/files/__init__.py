"""Files that a user got from others: nobody guarantees their type, their unpacked size or their content.

Every command opens its input files with this package.
"""
