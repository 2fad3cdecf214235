"""Files that a user got from others: what they are, how large they become, and what is in them, is nobody's promise.

regular    only regular files are opened, also behind links
given      one such file, unpacked if gzip has packed it, with a bound on the bytes that come out
documents  JSON and TOML of such a file, counted before objects are made of it
printable  its texts, as a terminal may show them

A command that is given a file opens it here, and nowhere else.
"""
