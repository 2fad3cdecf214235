"""Several processes of a proxy on one port: their supervisor, and the memory in which they exchange messages.

Each process is a whole proxy. This package never relays a request, and the processes never wait for each other, except
for a few microseconds if two of them accept forwarded requests (`shared_nonces`).
"""
