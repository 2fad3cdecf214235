"""Tenants and API keys in the database: what proxies know of them, and what operators change.

Each kind of record has a number that rises with each change, and each record the number of its last one, so
that a process reads by one question whether something has changed, and then what. No request waits for it.

    records        the records of one kind, as this process knows them
    polling        reads what has changed from the database, and keeps it in `state_dir`
    access         which keys are good, and whose: those of the config and those of the database
    stored_tenants tenants of the database beside those of the config, checked as those are
    changing       what all changes have in common: the next number, the audit log, pages
    key_admin      makes, rotates, changes and revokes keys
    tenant_admin   adds, changes, removes and imports tenants
"""
