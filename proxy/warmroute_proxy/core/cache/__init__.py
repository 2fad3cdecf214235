"""Predictions of what the engines' caches have: prefixes, tiers, and which histories are still there.

The package never chooses an engine for a request, and never asks an engine: it learns from what the server reports.
"""
