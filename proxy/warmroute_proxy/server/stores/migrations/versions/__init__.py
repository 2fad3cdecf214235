"""One module for each revision of the schema, in their order.

    r0001_ledger     rows, sums, positions and leases
    r0002_directory  tenants, versions of records, and what was changed
    r0003_key_hour   what turns cost, by key and hour
    r0004_prices     price books

A revision that was released is never changed: a further one follows it.
"""
