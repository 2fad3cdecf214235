"""The prefix guard: what a client changed in a prompt that it had sent, found before the next one is sent.

An engine reuses the longest prefix that is equal token by token. So a prompt is read as parts in the order in which a
chat template writes them (tools, system, messages), the parts of a turn are compared with those of the turns before,
and the first one that differs ends what is cached. Everything here is pure: no clock, no randomness, no I/O, no
logging. It knows no client library; a request is the JSON object that goes over the wire, of any dialect.

    causes      why a prefix breaks: names, sentences, what to change
    canonical   the form in which parts are compared, and their digests
    prompt      a request as parts, with a chain of hashes
    volatile    dates, ids, counters and paths in a text, and how they are masked
    compare     the first break between two prompts, and its cause
    history     what happened to a list of messages: edited, pruned, compacted
    memory      the prompts of sessions and lineages, bounded; saved and loaded
    outcome     why an intact prefix was not cached: the server's side, or time
    repair      rules that put back what was changed
    volatile_lines, breakpoints   two rules that need more than one function
    upkeep      compaction and pruning that keep the prefix
"""
