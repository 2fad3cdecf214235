"""The decisions of the proxy, and nothing else: where a request goes, how long it waits, and its price.

This package has no clock, randomness, I/O, logging or async; time is the argument `now_s`. So recorded calls give the
same decisions again. Contracts in pyproject.toml say which of its packages may import which.
"""
