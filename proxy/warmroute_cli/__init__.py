"""The `warmroute` command: composes sdk, proxy and backend, and is imported by none of them."""
