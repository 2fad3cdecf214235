"""The HTTP paths of an engine. Handlers read an exchange, call the engine, and answer.

They hold no state of requests.
"""
