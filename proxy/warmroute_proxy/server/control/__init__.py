"""The control plane: small JSON answers for tenants, and pages for operators.

No token of an answer passes through the control plane. It changes drains and roles of engines, the config in force, and
tenants and keys in the database. FastAPI gets its requests from the connections of `http`, within the same limits.
"""
