"""The base of the plain values of modules that may be compiled.

mypyc silently ignores the options of a class statement behind its bases (mypy issue 21938), so that a compiled
`class A(msgspec.Struct, frozen=True, gc=False)` would be neither. Options of a base are inherited. mypyc also makes
rough types of the fields, so structures that are decoded from JSON, or from another process, are in modules that are
not compiled.
"""

import msgspec


class Frozen(msgspec.Struct, frozen=True, gc=False):
    """A value: compared and hashed by its fields, which never change, and not tracked by the garbage collector."""
