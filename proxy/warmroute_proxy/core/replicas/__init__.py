"""A router in more than one copy: among several processes, and again from a record.

It never transports or stores bytes: `server.processes` and `server.ledger` do.

replica            a router that decides together with those of other processes
peer_events        those events
event_stream       those events, on their way to another proxy over a link that loses messages
recorder           records what a router does, and the playback of a record
record             the format of a record
"""
