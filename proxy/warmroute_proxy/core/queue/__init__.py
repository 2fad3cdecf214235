"""Which requests wait, in which order they go, and how much each tenant and each retry may use.

It never holds a connection or a timer: the server's admission does, and calls these rules.

admission        the queue: lines, fairness, bounds, retry times
budget           leases on what tenants or keys may use by minute, day and month
dispatch_rate    when a refused request should retry
dispatch_order   whether a queued request goes now, and where
door             which turns may begin a session while memory is short
fair_budget      what each tenant may hold: bytes of bodies, connections
shortage         how much KV memory a fleet is short of
memory_wait      which requests wait for KV memory
quota            limits of one process by the minute and at once
rotation         which of many things are looked at in a round
scope            what a limit applies to: keys, a tenant, or several
slots            requests at once over several proxies
refused_sessions the sessions that could not begin, and keep their places
reservation      what one request has reserved of all of these
retry_budget     how many retries are made
"""
