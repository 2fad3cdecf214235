"""Traces of requests by OpenTelemetry: decides which requests are traced, and sends their spans to a collector.

No other package knows of traces. A sampled request is a `TracedRequest`, which notes its times and hands them to a
thread when it ends. Only this exporting thread imports OpenTelemetry's packages, and only if the config has a table
[tracing].
"""
