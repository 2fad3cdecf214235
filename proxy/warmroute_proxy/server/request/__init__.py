"""The path of an inference request: from admission to the receipt, as a state machine in the event loop.

Nothing here waits, parses a client's HTTP or decides a placement: callbacks drive it, `parsed` has read the request,
and `core` decides. `build.py` gives each part what it uses.

    inference_request   one request under way: place, dispatch, relay, settle
    states              the lives of requests and attempts, as tables
    request_path        the collaborators of every request
    open_requests       the requests under way, and the newest decisions
    admission           the queue, tenants' quotas and the budget of retries
    placing             where a request goes, first and after a failure
    dispatch            the bytes that engines are sent
    attempt             one dispatch: the answering leg and its end
    prefill_leg         the leg of a pair that goes to its prefill engine
    answer              what engines report of tokens, and a whole answer with settled usage
    believed            what is believed of these tokens
    client_answer       headers, stream, body or error for the client
    continuation        an answer that another engine goes on with
    deadlines           time limits, and signs of life before the first token
    failure             how an attempt fails
    faults              whose fault that is, and what may be tried again
    settlement          ledger row, receipt and what the router learns
    lost_tokens         why tokens of its prompt were not cached
    request_metrics     the counters of requests
    forwarding          requests that another region serves
    idempotency         retries under an `Idempotency-Key` share one answer
    re_prefill          hot prompts of an engine that goes, computed on another
"""
