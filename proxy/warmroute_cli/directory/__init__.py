"""`warmroute tenants` and `warmroute keys`: tenants and API keys in the database, for all proxies that use it."""
