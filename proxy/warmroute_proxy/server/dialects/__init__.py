"""Serves other APIs as chat completions: translates requests as they come in, and answers on their way out.

The pure package `warmroute_proxy.dialects` translates the content. This package connects that translation to requests
and exchanges (an exchange sends the answer to one request). It knows no engine or price: between the two translations,
a request is a chat completion like any other.
"""
