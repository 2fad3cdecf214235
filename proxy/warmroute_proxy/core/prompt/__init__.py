"""A prompt without its text: a chain of hashes in template order, its sizes, and how long its tokens are.

It never renders a template or counts tokens: an engine does that. It never stores text.
"""
