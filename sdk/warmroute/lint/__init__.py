"""`warmroute lint`: the causes of broken prefixes in recorded requests, with their tokens and money."""
