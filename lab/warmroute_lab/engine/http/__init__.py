"""HTTP/1.1 for an engine, and what every handler needs of a request.

It knows no path and no scheduler.
"""
