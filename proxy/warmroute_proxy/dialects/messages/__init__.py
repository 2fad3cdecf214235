"""Anthropic's messages, translated to chat completions and back. Pure: bytes in, bytes out, no memory of other turns.

The law: the same prefix in gives the same prefix out, byte for byte, and a turn that only appends here only appends in
chat. So each message is translated by itself, its texts are copied as they came, and one text block is the same as a
text. `cache_control` is left behind. What an API of chat has no place for is dropped and named.

- blocks: one block of content, as parts, calls and tool messages of chat
- signatures: of the reasoning that a client sends back
- conversation: the system prompt and the messages of a request
- tools: its tools
- state: what it says of a conversation that a server keeps
- request: its body
- answer: a whole answer, and the usage and stop reason of any
- events: the events of a stream
- models: the list of models
- errors: the error object and its statuses
"""
