"""Another config while the proxy runs: read, checked, compared with the one in force, and applied whole or not at all.

A reload never waits for an engine, a store or another process: what it applies holds when it returns.

    membership   the engines that join, stay and leave
    orders       orders to reload, of all processes of a proxy
    secret_files files of secrets, which may be replaced
    reloads      one config after the other in this process
"""
