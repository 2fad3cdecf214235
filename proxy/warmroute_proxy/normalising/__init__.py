"""Named rules that remove texts by which coding agents spoil a prompt's prefix. Pure, like `core`.

An engine finds a cached prompt by its first tokens. So if a prompt has a number that changes with each request, all
that follows the number is computed again. Each rule recognises one such text by its form alone, without memory of
earlier turns. So equal prefixes in give equal prefixes out. Nothing else in a prompt is changed.
"""
