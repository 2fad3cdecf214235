"""`warmroute ladder`: where cached tokens went, step by step, in tokens and USD.

arguments  the options
sources    what turns are read from
logs       logs of other programs, and records of a proxy
table      the ladder as a table of 80 columns
command    runs it
what_if    the same record with another placement, fleet, memory or prices
"""
