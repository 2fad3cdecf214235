"""Engines: the embedded one, and SGLang on this CPU. The package never imports the proxy.

engine    the embedded engine: a model of an engine that speaks SGLang's protocol
plan      plans a deployment of SGLang: what fits, and why; pure
sglang    runs the real SGLang on a CPU, for tests and the demo
"""
