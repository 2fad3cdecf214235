"""`warmroute audit isolation`: whether one tenant can tell what another has sent.

arguments    the options
probes       one request, and what its sender can see: time to the first token, and cached tokens
comparison   whether one set of times is lower than another: a rank test
isolation    the trials
verdicts     what the trials show, in a row for each relation of two tenants
command      runs it
"""
