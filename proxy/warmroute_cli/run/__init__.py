"""`warmroute run NAME`: runs an installed coding agent on a proxy, and reports the cost of its turns at the end."""
