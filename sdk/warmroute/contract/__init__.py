"""The wire contract between client, proxy and tools: names, identities, receipts, money.

Everything here is pure and uses only the standard library, so that any side may import it at no cost. It never imports
`openai` or another package of this project, which a test checks.
"""
