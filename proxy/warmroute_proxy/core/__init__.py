"""The decisions of the proxy, and nothing else: where a request goes, how long it waits, and its price.

No clock, randomness, I/O, logging or async in here: time is an argument, `now_s`. So recorded calls give the same
decisions again. Which room may import which others is a contract in pyproject.toml.
"""
