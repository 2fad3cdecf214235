"""The path of an inference request: from admission to the receipt, as a state machine in the event loop.

Nothing here waits, parses a client's HTTP or decides a placement: callbacks drive the state machine, `server.intake`
has read the request, and `core` decides. `build.py` connects the modules.
"""
