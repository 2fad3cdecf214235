"""Gemini's `generateContent`, translated to chat completions and back. Pure: bytes in, bytes out, no memory of turns.

The law: the same prefix in gives the same prefix out, byte for byte, and a turn that only appends here only appends in
chat. So each content is translated by itself; a call without an id gets one of its position in the conversation.
Members may have their names in camel or snake case, as in Google's own documentation.

What the model has thought before a call travels with the client, sealed, as the signature of that call (`Seal`): Gemini
CLI leaves thoughts themselves behind.
"""
