"""What all packages of the server use: configuration, errors, metrics and secrets.

Nothing here opens a socket or serves a request, and nothing here imports another package of the server.
"""
