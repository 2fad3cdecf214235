"""Gemini's `generateContent`, translated to chat completions and back. Pure: bytes in, bytes out, no memory of turns.

The law: equal prefixes in give equal prefixes out, byte for byte, and a turn that only appends here only appends in
chat. So each content is translated by itself, and a call without an id gets one from its position in the conversation.
Members may have names in camel or snake case, as in Google's own documentation.

Gemini CLI does not send thoughts back, but it does send the signatures of calls. So the thoughts before a call are
sealed (encrypted by `Seal`), and go to the client as the signature of that call.
"""
