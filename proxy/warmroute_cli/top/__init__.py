"""`warmroute top`: the fleet in a terminal, with what its caches save now.

arguments   its options
command     asks, draws, and follows keys until `q`
reading     what the admin listeners of all regions say, at one time
rates       what counters gained within the last minute
screen      such a reading as lines of a terminal
terminal    the terminal itself: raw keys, its size, and how it was before
"""
