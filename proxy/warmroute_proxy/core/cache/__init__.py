"""Predictions of what the engines' caches have: prefixes, tiers, and which histories are still there.

It never decides where a request goes, and never asks an engine: it learns from what the server reports.
"""
