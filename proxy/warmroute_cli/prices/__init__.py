"""`warmroute prices`: the price books of a proxy's config and of its database.

arguments   the command line
command     what it does: lists books, and adds further ones to the database
"""
