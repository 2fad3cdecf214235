"""Where a request goes, and why: the fleet, the costs, the decision and the router that combines them.

Nothing here sends requests: the server dispatches what was decided, and reports the outcome.
"""
