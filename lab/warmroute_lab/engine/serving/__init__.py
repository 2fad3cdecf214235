"""The engine at work: requests go to schedulers, whose steps pass at the pace of the wall clock.

It decides no cache content and no step length: the model does.

engine         takes requests, and ends each exactly once
pace           lets the steps of one scheduler pass
bootstrap      where prefill and decode engines meet
legs           the two legs of a PD request: checks and errors
kv_feed        when KV events are published
request_log    a file of ended requests
"""
