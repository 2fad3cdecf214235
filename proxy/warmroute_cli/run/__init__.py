"""`warmroute run NAME`: an installed coding agent on a proxy, and what its turns cost at the end."""
