"""The prefix guard: what a client changed in a prompt that it had sent, found before the next one is sent.

An engine reuses the longest prefix that is equal token by token. So a prompt is read as parts in the order in which a
chat template writes them (tools, system, messages), the parts of a turn are compared with those of the turns before,
and the first one that differs ends what is cached. Everything here is pure: no clock, no randomness, no I/O, no
logging. It knows no client library; a request is the JSON object that goes over the wire, of any dialect.
"""
