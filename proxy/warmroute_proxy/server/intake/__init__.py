"""From a client's request to a `ParsedRequest`: its sender, its model and session, and a fingerprint of its prompt.

It never waits, never talks to an engine and never changes a client's values: a body is checked, and forwarded as bytes.
Whatever is wrong with a request is raised as a `Refusal` here, before anything is dispatched.

- body: the top-level members of a request body
- body_fields: the fields of a body that are decoded, with types and bounds
- body_template: the bytes around the messages, which many bodies of a caller share
- mending: chats that can be served nearly as they came
- cleaning: chat bodies whose texts would spoil a prefix
- caller: who sends a request, by its head, kept for the next ones
- conversation_file: conversations without a session key, kept over a restart
- intake: reads and checks a request
- request_parser: reads the requests of all callers
- known_body: bodies and conversations that were read before, kept for the next ones
- large_bodies: has large and dense bodies read in another process, by turns of their tenants
- large_body: a large body, which is sent from where it is
- large_reader: that process, seen from the proxy
- large_reading: what it does
- parsed_request: the `ParsedRequest`, which everything behind works with
- prefix_breaks: what broke the prefix of a turn, and what that cost
"""
