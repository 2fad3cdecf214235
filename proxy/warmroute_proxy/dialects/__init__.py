"""What API dialects let a client say to an engine, and an engine answer. Pure like `core`: no clock, I/O or async.

The package never sees a connection, a tenant or an engine. It gets raw JSON members, and says which may pass.

- fields: the check of a request's members against a list of fields with types and bounds
- openai_fields: the lists of OpenAI's chat completions and completions, with SGLang's extensions
- openai_answers: members of answers that engines write with another type than OpenAI, which are dropped
- messages: Anthropic's messages as chat completions, and their answers back
- responses: OpenAI's Responses likewise
- gemini: Gemini's `generateContent` likewise
- content: what contents of several dialects have in common
- foreign: what something says that has no place in chat
- tool_arguments: the arguments of calls, which engines parse
- chat_history: what is mended in chats
- raw_json: reading the members of a request or of its body, with errors that say where they are
- chat_answers: what translators read of chat's answers
- call_numbers: the calls of a chat stream as chat's own clients tell them apart
- call_extras: what an engine wants back with a call, carried in the id of the call
- chat_calls: the tool calls of a chat answer, told apart
- chat_stream: a chat stream, handed to a dialect event by event
- chunk_view: what a relay has to know of an answer
- event_reader: the events of an event stream
- known: what was translated before, by its bytes
- work: how much may be made of a body, where it is read; depth of JSON that an engine compiles, such as schemas
- tool_grammars: schemas of tools that an engine compiles
"""
