"""Limits of a request: of this process, and over all proxies."""
