"""Attacks: what one client does to the engines, to the proxy, and to other tenants."""
