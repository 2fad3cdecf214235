"""Several processes on one port: who starts them, and how they share what they know.

Each process is a whole proxy. This room never relays a request, and its processes never wait for each other.

    supervisor      starts, watches and ends the processes
    shared_memory   lanes of messages and reports, without locks
    shared_nonces   nonces that any process has accepted
    peer_processes  updates sent to the other processes, and applied from them
"""
