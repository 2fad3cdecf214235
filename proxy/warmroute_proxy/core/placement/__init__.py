"""Where a request goes, and why: the fleet, the costs, the decision and the router that has them all.

It never sends anything: the server dispatches what was decided, and reports what became of it.
"""
