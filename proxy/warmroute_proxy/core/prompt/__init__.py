"""A prompt without its text: a chain of hashes in template order, its sizes, and its bytes per token.

This package never renders a template or counts tokens: engines do that. It never stores text.
"""
