"""Several processes on one port: who starts them, and how they share what they know.

Each process is a whole proxy. This package never relays a request, and the processes never wait for each other.
"""
