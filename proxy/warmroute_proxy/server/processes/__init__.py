"""Several processes on one port: who starts them, and how they share what they know.

Each process is a whole proxy. This room never relays a request, and its processes never wait for each other.
"""
