"""Anthropic's messages, translated to chat completions and back. Pure: bytes in, bytes out, no memory of other turns.

The law: the same prefix in gives the same prefix out, byte for byte, and a turn that only appends here only appends in
chat. So each message is translated by itself, its texts are copied as they came, and a single text block gives the same
bytes as a text. `cache_control` is removed. Members that chat has no place for are dropped and named.
"""
