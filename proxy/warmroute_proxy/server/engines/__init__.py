"""The engines of a region: connections to them, what they report, and what they publish of their caches.

This room sends bytes to engines and reads their answers and reports. It never decides where a request goes, and knows
neither requests nor tenants: whoever sends a request gives it a `Leg`.

    engines         the registry: which engines there are, and what all of them share
    engine          one engine: its connections, its last reports, whether it answers
    probing         the rounds of probes that keep an engine's state up to date
    templates       whether its template takes system messages behind others
    server_info     what an engine reports of itself at `/server_info`
    drains          which engines get no new work, by whose order
    drain_orders    operators' drain orders on disk
    peer_updates    what is sent to the other processes of the proxy, as a protocol
    ids             ids of requests and receipts, and bootstrap rooms
    engine_headers  the client's headers that an engine gets
    upstream        pooled HTTP/1.1 connections to one address
    leg             one request to one engine, as callbacks
    carrier         takes requests to engines where a gateway sends them, as a protocol
    small_get       a short request whose answer is collected whole
    passthrough     relays the chunks of a stream with their framing unchanged
    portions        large reads of a connection, handled in the turns of tenants
    chunk_shape     by which bytes a chunk is recognised as plain content
    sse             scans the events of a stream for what the proxy has to know
    kv_events       subscriptions to the KV events of engines
    kv_feed         applies the KV events of one worker in order
    kv_blocks       matches blocks of an engine's cache with prompts
    engine_metrics  what an engine's metrics report of each rank, and what it has counted
    watching        metrics and conditions of all engines, from these reports
    kv_move_costs   what host and storage hits cost, from an engine's metrics
"""
