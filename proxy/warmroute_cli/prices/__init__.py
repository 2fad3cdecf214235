"""`warmroute prices`: the price books of a proxy's config and of its database."""
