"""What one region's proxy knows of the others, and asks of them.

A request that another region serves is relayed by `request/forwarding.py`.

    peers           their proxies, whether they are ready, and small questions to them
    forward_claim   the signed token of a forwarded request
    region_nonces   whether another proxy of the region has accepted it
    announcements   which turns each region serves, as the others are to know it
    other_proxies   what the proxies of one region tell each other
    versions        of what proxies send each other
    receipt_voider  rows of other regions that are to be voided
"""
