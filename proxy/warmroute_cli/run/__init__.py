"""`warmroute run NAME`: a coding agent that is installed here, pointed at a proxy, and what its turns cost at the end.

arguments   the command line
command     which proxy, which model; start, wait, report
programs    a table: how each program is told where to send its requests
settings    variables and files of one start, and how `--print` shows them
process     the program as a child that has the terminal
title       the turns in the title of the terminal or its last line, while it runs
closing     turns, hit ratio, cost, and what broke prefixes
"""
