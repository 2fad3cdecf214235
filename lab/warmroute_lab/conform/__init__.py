"""`warmroute conform URL`: scores an endpoint against the profile of affinity and cache receipts (docs/spec).

arguments  the options
shapes     requests and answers of four APIs: OpenAI's two, Anthropic's, Gemini's
hiding     keys in texts and JSON values, which are never shown
wire       one request on the wire, and what is shown of it
trial      the endpoint under test: a budget of requests, and what all of them have shown
caching    the checks of cached tokens and of sessions
answers    the checks of answers: several of one request, cancelled and repeated ones, sums, prices
fields     the checks of fields that are lost in translation
codex      the checks of what Codex sends and reads
verdicts   cells, and whether a column passes
checks     the list of checks, what they cost, and a cell for each
report     the table and the JSON
command    runs it
"""
