"""Traces of requests by OpenTelemetry: which requests have one, and how spans reach a collector.

No other room knows of traces. A sampled request is a `TracedRequest`, which notes its times and hands them over
once, at its end. OpenTelemetry's packages are imported by the thread that exports, and only where the config has
a table [tracing].

    traced_request a request that notes its times
    timeline      its child spans, from the events of its life
    context       the W3C trace context of a request, and the sampling
    names         the names of all attributes
    finished      what a finished request hands over
    attributes    the attributes of its span, from its ledger entry
    spans         spans of OpenTelemetry, from what was handed over
    tracing       the bounded queue and the thread that exports
"""
