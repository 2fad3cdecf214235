"""`warmroute top`: shows the fleet in a terminal, with what its caches save now."""
