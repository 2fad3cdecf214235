"""OpenAI's Responses, translated to chat completions and back. Pure: bytes in, bytes out, no memory of other turns.

The law: the same prefix in gives the same prefix out, byte for byte, and a turn that only appends here only appends in
chat. A model's turn is one message in chat, and several items here: reasoning, a message, calls. Items that follow each
other in this order are joined again. So the law holds if new items stand behind an item that is not the model's, and
clients append in this way.

The proxy stores nothing: reasoning travels with the client, sealed (`Seal`).
"""
