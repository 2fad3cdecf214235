"""The control plane: small JSON for tenants, and pages for operators.

It is never on the path of a token, and changes nothing but drains and roles of engines, and which config is in force.
Its framework runs behind the connections of `http`, with the same limits.
"""
