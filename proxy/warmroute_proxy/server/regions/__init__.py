"""What one region's proxy knows of the others, and asks of them.

A request that another region serves is relayed by `request/forwarding.py`.
"""
