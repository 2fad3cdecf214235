"""`warmroute lint`: the causes of broken prefixes in recorded requests, with the tokens and the money that they cost.

transcript  recorded requests, read from files of several formats
spans       OpenTelemetry spans of generative AI, as requests
analysis    the turns of sessions, and what each cause has cost
table       the result as text and as JSON
page        the result as one HTML page, with a timeline of each session
arguments   the options of the command line
command     what the command does
"""
