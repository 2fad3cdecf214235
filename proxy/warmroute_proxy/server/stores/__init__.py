"""State that several proxies share: the ledger of a fleet in PostgreSQL, and budgets.

Nothing here is on the path of a request. A thread with an event loop of its own talks to the database, each call with
a deadline. While the database is away, the journal and the ledger file of each proxy keep what is to be sent.

    stores          what the config names, opened; its state in words and figures
    budgets         leases of this process on budgets, and who may spend
    database        one connection that is opened again by itself, its state, and the check of the schema's version
    store_thread    the thread, its event loop, and questions to it
    limits          what a request may use of all limits, in this process and over all proxies
    spool           ended rows of the ledger file that the database does not have yet
    store_state     what a store is to this proxy, and errors
    postgres_store  adds rows and their sums, once each
    postgres_budgets hands out leases on budgets, and settles them with the rows
    sqlite_store    the same for budgets alone, in a file, where there is no database
    partitions      one table a day: made ahead, and dropped when it is too old
    shipping        sends the spool to the store in order, batch by batch
    fleet_ledger    reads sums, lists and receipts of all proxies from the database
    fleet_rows      reads rows one after another, for a command
    migrations      the schema, by Alembic
    directory       tenants and API keys in the database, read by proxies and changed by operators
    prices          the price books that settle turns, of the config and of the database
    price_table     the table of price books: read, and added to
    price_admin     what operators do with it
    kept_file       keeps what was read of the database for a start while it is away
    migrate         applies them: `warmroute ledger migrate`
"""
