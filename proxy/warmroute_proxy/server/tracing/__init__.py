"""Traces of requests by OpenTelemetry: which requests have one, and how spans reach a collector.

No other package knows of traces. A sampled request is a `TracedRequest`, which notes its times, and hands them over
once, at its end. Only the exporting thread imports OpenTelemetry's packages, and only if the config has a table
[tracing].
"""
