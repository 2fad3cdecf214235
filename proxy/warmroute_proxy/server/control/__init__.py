"""The control plane: small JSON for tenants, and pages for operators.

It is never on the path of a token, and changes nothing but drains and roles of engines, and which config is in force.
Its framework runs behind the connections of `http`, with the same limits.

    control_plane   the public application (models, usage, receipts, readiness) and that of operators
    engine_admin    operators' view of engines, and their drain orders
    engine_flip     switches engines between prefill and decode
    readiness       why no requests should be sent here now
    exposition      the text formats of `/metrics`
    metrics_page    `/metrics`, over all processes
    own_gauges      what it shows of the proxy as a program
    model_routes    the models, in the shape of each API
    directory_routes  tenants and API keys in the database, for operators
    openapi         the OpenAPI document, with the inference routes
    described       what routes say of themselves, and the document that FastAPI makes of it
    models          types of bodies and answers
    reload_routes   applies the config file, or says what it would change
    receipt_words   a receipt in words
    page_files      the page of the admin listener, and its headers
    view_routes     what the page reads, for operators and for tenants
    session_routes  what clients say of their sessions between turns
    usage_routes    usage and receipts, for tenants and for operators
    usage_question  reads such a question from its parameters
    fleet_usage     asks this region and the others, and adds their answers up
    shared_usage    asks the database of a fleet instead
    answers         JSON and errors as answers
"""
