"""Requests of other APIs on the path of chat completions: translated as they come in, their answers on the way out.

What is said is translated by `warmroute_proxy.dialects`, which is pure. Here it meets a request and its exchange. The
room knows no engine or price: what runs in between is a chat completion like any other.
"""
