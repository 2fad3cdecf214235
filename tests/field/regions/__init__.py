"""Three regions on one host: network namespaces, the delay and the faults between them, and what must hold then.

    namespaces   a network namespace for each region, the lines between them, and how those break
    processes    proxies, engines and stores in them
    agents       what clients send, and where each turn enters: pure
    schedule     what breaks, when and until when: pure
    run          one run: all of that, and what it leaves to look at
    audit        what must hold of it: pure
    measured     the figures of a run: pure
    seeds        many seeds, one after the other
    figures      the table and the plot of docs/benchmarks/regions.md

`python -m tests.field.regions` runs by hand; docs/contribute/regions.md says what it can do.
"""
