"""Where a request goes, and why: the fleet, the costs, the decision and the router that has them all.

It never sends anything: the server dispatches what was decided, and reports what became of it.

router           the one object that the server uses
fleet            workers and peer regions as configured
fleet_state      the workers of a router with their loads and caches
choices          those that could serve a model, and those that one request may use
matched_prompt   a prompt in tokens, and what of it each worker has cached
prices           what a placement costs all other requests
forks            prompts that share a head and come at once
homes            the region where a request's lineage or session was served
costs            the cost at each worker: the formula and its terms
warm             a known conversation stays where it is warm
seen             what was seen of caches that a turn found less in than it was expected to
listener         who is told what the router does
placement        the cheapest of them, with the reasons
decision         a decision and its candidates
ticket           one dispatched attempt
in_flight        the effect of attempts on loads and caches, until they end
histories        where conversations left their histories
waits            what waits for KV memory at other processes
working_set      whether a turn may have KV memory now
accuracy         how far predictions were off
credit           for tokens that were cached at home, and that placement chose not to use
hot_prompts      the last prompts of hot lineages, to be computed elsewhere before a drain
"""
