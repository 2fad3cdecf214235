"""Predicts what the engines' caches hold: which prefixes, in which tiers, and which conversations' histories.

The package never chooses an engine for a request, and never asks an engine: it learns from what the server reports.
"""
