"""Turns a client's request into a `ParsedRequest`: its sender, its model and session, and a fingerprint of its prompt.

Intake never waits and never talks to an engine. The request body is checked, and forwarded as the client's bytes,
except for what `cleaning` and `mending` change. A faulty request raises a `Refusal` here, before anything is
dispatched.
"""
