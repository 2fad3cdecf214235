"""The HTTP paths of an engine. Handlers read an exchange, call the engine, and answer.

They hold no state of requests.

routes       all paths and their handlers
admin        API keys of paths, and the storage backend's path
metrics      loads, Prometheus metrics, server and model information
faults       faults that tests order
shown        conditions that tests order
role_switch  between prefill and decode
"""
