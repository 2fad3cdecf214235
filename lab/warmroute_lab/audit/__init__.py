"""`warmroute audit isolation`: whether one tenant can tell what another has sent."""
