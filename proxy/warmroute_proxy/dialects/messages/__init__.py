"""Anthropic's messages, translated to chat completions and back. Pure: bytes in, bytes out, no memory of other turns.

The law: equal prefixes in give equal prefixes out, byte for byte, and a turn that only appends here only appends in
chat. So each message is translated by itself, its texts are copied as they came, and a lone text block gives the same
bytes as a plain string. `cache_control` is removed. Members that chat has no place for are dropped, and named in the
receipt (in the answer's `usage`).
"""
