"""The control plane: small JSON for tenants, and pages for operators.

The control plane is never on the path of a token. It changes drains and roles of engines, the config in force, and
tenants and keys in the database. FastAPI runs behind the connections of `http`, with the same limits.
"""
