"""From a client's request to a `ParsedRequest`: its sender, its model and session, and a fingerprint of its prompt.

It never waits, never talks to an engine and never changes a client's values: a body is checked, and forwarded as bytes.
Whatever is wrong with a request is raised as a `Refusal` here, before anything is dispatched.
"""
