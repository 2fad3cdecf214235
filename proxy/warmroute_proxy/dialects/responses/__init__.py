"""OpenAI's Responses, translated to chat completions and back. Pure: bytes in, bytes out, no memory of other turns.

The law: the same prefix in gives the same prefix out, byte for byte, and a turn that only appends here only appends in
chat. What a model says in one turn is one message of chat, and several items here: reasoning, a message, calls. Items
that follow each other in this order are joined again. So the law holds for all that is appended behind an item that is
not the model's, which is what clients do.

Nothing is stored, here or elsewhere: reasoning travels with the client, sealed (`Seal`).
"""
