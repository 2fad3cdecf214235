"""The links between proxies, of this and of other regions: probes, announcements, questions, signed forwards.

`request/forwarding.py` relays the answer of a request that another region serves.
"""
