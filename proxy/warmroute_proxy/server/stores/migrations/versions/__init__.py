"""One module for each revision of the schema, in their order.

A revision that was released is never changed: a further one follows it. Its `oldest_reader` is the oldest revision
whose proxies read and write the schema that it makes. A revision that adds a table, or a column with a default, keeps
the reader of before (it expands). One that removes something is its own reader, or names the first revision that no
longer used it (it contracts), and comes at least one release later.
"""
