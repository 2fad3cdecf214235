"""Decides where a request goes, how long it waits, and its price; everything else in the proxy is outside.

This package has no clock, randomness, I/O, logging or async; time is the argument `now_s`. So recorded calls give the
same decisions again. Contracts in pyproject.toml say which package of the core may import which.
"""
