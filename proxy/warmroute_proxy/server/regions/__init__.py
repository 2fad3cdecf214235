"""The proxies of other regions and of this one: probes, announcements, questions, and signed forwards between them.

`request/forwarding.py` relays a request that another region serves.
"""
