"""What all rooms of the core are built on; it imports none of them.

compiled the base of plain values, and options of classes for the compiler
role     what an engine does of a request
steady_time a time that no jump of the clock takes forward
trouble  what `/ready` can say
"""
