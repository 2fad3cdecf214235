"""The schema of the database, as revisions of Alembic.

`versions` has one file for each revision, and `env` runs them. `stores.database` names the revision that this proxy
uses.
"""
