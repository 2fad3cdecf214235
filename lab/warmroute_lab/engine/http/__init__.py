"""HTTP/1.1 for an engine, and what every handler needs of a request.

No module here knows a path or a scheduler.
"""
