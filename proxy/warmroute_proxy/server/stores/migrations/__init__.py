"""The schema of the database, as revisions of Alembic.

`versions` has one file for each, `env` runs them; `database` says which one this proxy reads and writes.
"""
