"""The durable record of turns: a journal in the event loop, folded into an SQLite file by a thread.

This room never computes a price or a usage; it stores entries, finds them and adds them up. It knows no requests: a
callback says when an entry is durable.

    ledger         opens and settles entries, and answers queries about them
    journal        the append-only file to which entries are written first
    earlier_turns  the newest turn of each lineage before the process began
    retention      deletes the oldest rows of the SQLite file, and gives their space back
    fold           moves entries from the journal to SQLite
    schema         the tables, and the migration of earlier versions
    all_processes  reads what all processes of a proxy have settled
    all_rows       reads the rows of all processes, newest first, within limits of rows and time
    usage_sums     adds rows up by session, model, tenant or day, and lists the newest
    ladder_sums    the ladder of the newest turns
    counter_file   keeps what engines have counted, by hour
    queries        such questions, answered in a thread
    void_orders    rows in other regions that are to be voided there
    recording      writes the decision record of a router, which is no part of the ledger
"""
