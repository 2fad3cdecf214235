"""One module for each revision of the schema, in their order.

    r0001_ledger     rows, sums, positions and leases
    r0002_directory  tenants, versions of records, and what was changed
    r0003_key_hour   what turns cost, by key and hour
    r0004_prices     price books
    r0005_readers    which proxies read this schema
    r0006_losses     two more loss classes in the sums

A revision that was released is never changed: a further one follows it. Its `oldest_reader` is the oldest revision
whose proxies read and write the schema that it makes. A revision that adds a table, or a column with a default, keeps
the reader of before (it expands). One that removes something is its own reader, or names the first revision that no
longer used it (it contracts), and comes at least one release later.
"""
