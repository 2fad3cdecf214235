"""`warmroute conform URL`: scores an endpoint against the profile of affinity and cache receipts (docs/spec)."""
