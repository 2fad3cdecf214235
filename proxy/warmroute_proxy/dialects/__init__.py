"""What API dialects let a client say to an engine. Pure, like `core`: no clock, randomness, I/O, logging or async.

The package never sees a connection, a tenant or an engine. It gets raw JSON members, and says which may pass.

- fields: the check of a request's members against a list of fields with types and bounds
- openai_fields: the lists of OpenAI's chat completions and completions, with SGLang's extensions
- json_bounds: size and depth of JSON that an engine compiles, such as schemas
"""
