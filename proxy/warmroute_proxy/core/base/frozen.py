"""The base of the plain values of modules that may be compiled.

mypyc leaves out what a class statement says behind its bases, without a word (mypy issue 21938), so that a compiled
`class A(msgspec.Struct, frozen=True, gc=False)` would be neither. What a base says is inherited. It also makes rough
types of the fields, so what is decoded from JSON, or from another process, stands in a module that is not compiled.
"""

import msgspec


class Frozen(msgspec.Struct, frozen=True, gc=False):
    """A value: compared and hashed by its fields, which never change, and of no concern to the garbage collector."""
