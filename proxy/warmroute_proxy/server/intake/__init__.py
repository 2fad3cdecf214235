"""From a client's request to a `ParsedRequest`: its sender, its model and session, and a fingerprint of its prompt.

Intake never waits, never talks to an engine and never changes a client's values: a body is checked, and forwarded as
bytes. A faulty request raises a `Refusal` here, before anything is dispatched.
"""
