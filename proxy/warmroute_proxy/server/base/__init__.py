"""What all rooms of the server use: configuration, errors, metrics and secrets.

Nothing here opens a socket or serves a request, and nothing here imports another room of the server.

    config        the configuration as frozen values
    config_bounds bounds of its numbers, and what changes while the proxy runs
    config_counting budgets and limits that several proxies would each spend whole
    config_difference what differs between two configs, and what can change without a restart
    config_discovery reads where engines are found beside those of the config
    config_engine reads one engine of the config file
    config_file   reads and checks the config file
    config_prices reads price books, and writes them
    config_schema the file as a JSON Schema
    config_source reads the config file again, keeps what was accepted, and what is in force
    config_stores reads limits, budgets and the stores in which proxies share them
    config_table  reads the keys of one of its tables by their types
    cores         how many cores this process may use
    declared_metrics each metric: its name and description
    descriptors   how many file descriptors the process has, and what they are for
    engine_refusals what an engine's refusal means to the client, and to other engines
    engine_text   what of an engine's error text is for clients, and what for the log
    engine_words  the words of an engine's error, whatever form its body has
    errors        errors in the shape of the OpenAI API
    log_format    a line of the log, as text and as JSON
    loop_lag      how late the event loop is, and what held it
    patience      time limits in which the lateness of the proxy itself does not count
    port_owner    who listens on a port of this machine
    repeated_line a line of the log that others can bring about without end
    metrics       counters and histograms, and their text format
    sealing       reasoning that clients keep for us, sealed
    secrets       the fleet secret and what is derived from it, API keys, engine keys
    turns         whose turn it is in the event loop
    terms         what the translation of a request depends on besides its body
"""
