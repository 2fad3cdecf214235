"""`warmroute tenants` and `warmroute keys`: tenants and API keys in the database, for all proxies that use it.

arguments   the command lines
command     runs them: opens the database of a config, and says what is wrong
config_key  `warmroute key` without an action: a key for a config
settings    reads settings of a tenant from words of a command line
tables      prints lists
"""
