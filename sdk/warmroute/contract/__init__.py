"""The wire contract between client, proxy and tools: names, identities, receipts, money.

Everything here is standard library and pure, so that any side may import it at no cost; a test holds that
neither `openai` nor anything else of ours is loaded by it.

    headers    names of the headers and the fields that warmroute adds
    identity   who sent a turn (session) and which prompt it continues (lineage)
    steering   what may steer an engine and therefore never comes from a client
    money      rates in picodollars a token, amounts in nanodollars, one rounding rule
    receipt    the receipt of a turn, and the checks that any reader can run on it
"""
