"""Measures what the proxy costs, in comparison with the routers that are installed: `python -m bench`."""
