"""Describes a prompt without its text: a chain of prefix hashes in template order, sizes, and bytes per token.

This package never renders a template or counts tokens: engines do that. It never stores text.
"""
