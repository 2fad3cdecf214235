"""Limits of a request: of this process, and over all proxies.

request_limits  what a request may use of all of them, what is left, and what is said where nothing is
shared_limits   what proxies share in Redis, as the config has it
shared_slots    requests at once over all proxies, in this process
"""
