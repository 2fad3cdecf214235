"""One module for each revision of the schema, in the order in which they are applied.

A released revision is never changed; mistakes are corrected by a later revision. `oldest_reader` is the oldest revision
whose proxies can read and write the schema that a revision makes.

A revision that expands the schema (adds a table, or a column with a default) keeps the `oldest_reader` of the revision
before it. A revision that contracts the schema names itself, or the first revision that no longer used what it removes.
It comes at least one release after the last use.
"""
