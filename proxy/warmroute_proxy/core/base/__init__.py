"""What all rooms of the core are built on; it imports none of them.

compiled the base of plain values, and options of classes for the compiler
role     what an engine does of a request
trouble  what `/ready` can say
"""
