"""The directory: tenants and API keys in the database, which proxies read and operators change.

Each kind of record has a number that rises with each change, and each record has the number of its last change. So one
query tells a process whether something has changed, and another one what has changed. No request waits for this.
"""
