"""The wire contract between client, proxy and tools: names, identities, receipts, money.

Everything here is pure and uses only the standard library, so that any side may import it at no cost. It never imports
`openai` or another package of this project, which a test checks.

    headers    names of the headers that warmroute reads and adds
    identity   who sent a turn (session), and which prompt it continues (lineage)
homes          the regions where the lineages of sessions are at home
    conversations  which conversation a request without a session key continues
    shares     bounded tables, divided between the owners of their entries
    providers  the session signal of each provider and server
    steering   fields and headers that steer an engine, and are never taken from a client
    money      rates in picodollars a token, amounts in nanodollars, one rounding rule
    receipt    the receipt of a turn, and the checks that any reader can run on it
    receipt_type  the same as a type, for type checkers
    meanings   what each loss class means
    changes    what a proxy changed in a request, as the receipt shows it
    version    the version of this release
"""
