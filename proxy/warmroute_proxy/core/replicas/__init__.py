"""A router in more than one copy: among several processes, and again from a record.

It never transports or stores bytes: `server.processes` and `server.ledger` do.

peer_router        a router that exchanges events with its peer processes
peer_events        those events
event_stream       those events, on their way to another proxy over a link that loses messages
recording_router   a router that records its calls, and the playback of a record
record             the format of a record
"""
