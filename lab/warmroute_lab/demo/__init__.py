"""`warmroute demo`: recorded agent sessions, played against a fleet, and an audit of the result.

The modules here start fleets and read their logs. They decide nothing: that is the proxy's.
"""
