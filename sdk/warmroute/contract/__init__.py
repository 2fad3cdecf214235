"""The wire contract between client, proxy and tools: names, identities, receipts, money.

All modules are pure and use only the standard library, so that client, proxy and tools can import them at no cost. A
test checks that they import neither `openai` nor another package of this project.
"""
