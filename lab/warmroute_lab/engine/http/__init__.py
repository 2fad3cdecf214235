"""HTTP/1.1 for an engine, and what every handler needs of a request.

It knows no path and no scheduler.

http1     connections; `Exchange` is one request and its answer
fields    members of a JSON body, read as SGLang reads them
errors    `Refusal`, and the forms in which endpoints send it
"""
