"""`warmroute run NAME`: run an installed coding agent on a proxy, and report the cost of its turns at the end."""
