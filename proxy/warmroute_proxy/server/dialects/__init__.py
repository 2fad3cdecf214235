"""Serves other APIs as chat completions: translates requests as they come in, and answers on their way out.

The pure room `warmroute_proxy.dialects` translates the content. This room connects that translation to requests and
exchanges. It knows no engine or price: between the two translations, a request is a chat completion like any other.
"""
