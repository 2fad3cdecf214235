"""`warmroute demo`: recorded agent sessions, played against a fleet, and an audit of the result.

The modules here start fleets and read their logs. All placement decisions are the proxy's.
"""
