"""OpenAI's Responses, translated to chat completions and back. Pure: bytes in, bytes out, no memory of other turns.

The law: equal prefixes in give equal prefixes out, byte for byte, and a turn that only appends here only appends in
chat. A model's turn is one message in chat, and several items here: reasoning, a message, calls. Consecutive items of
the model are joined to one message again. So the law holds if the items of the turn before end with one that is not the
model's, and clients append in this way.

The proxy stores nothing: reasoning is sealed (encrypted by `Seal`), and the client keeps it.
"""
