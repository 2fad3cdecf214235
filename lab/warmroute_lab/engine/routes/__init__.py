"""The HTTP paths of an engine. Handlers read an exchange, call the engine, and answer.

They hold no state of requests.

routes       all paths and their handlers
admin        API keys of paths, the storage backend's path, and the switch of the role
browsers     requests of pages in browsers
metrics      loads, Prometheus metrics, server and model information
faults       faults that tests order
shown        conditions that tests order
"""
