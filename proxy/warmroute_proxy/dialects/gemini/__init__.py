"""Gemini's `generateContent`, translated to chat completions and back. Pure: bytes in, bytes out, no memory of turns.

The law: the same prefix in gives the same prefix out, byte for byte, and a turn that only appends here only appends in
chat. So each content is translated by itself, and a call without an id gets one from its position in the conversation.
Members may have names in camel or snake case, as in Google's own documentation.

Gemini CLI does not send thoughts back. So the thoughts before a call travel with the client, sealed, as the signature
of that call (`Seal`).
"""
