"""The prefix guard finds a client's changes to the earlier part of a prompt, before the prompt is sent.

An engine reuses the longest prefix that is equal token by token. The guard reads a prompt as parts in the order in
which a chat template writes them (tools, system, messages), and compares them with the parts of earlier turns. The
first part that differs ends the cached prefix. All functions here are pure: no clock, no randomness, no I/O, no
logging. The guard depends on no client library: a request is the JSON object on the wire, in any dialect.
"""
