"""What the proxy costs, beside whatever routers are installed: `python -m bench`."""
