"""One request: its body, its planned answer, and how the client gets it.

Nothing here schedules: an answer is planned whole, and sent token by token when the engine calls.

prompt_request    a request body, checked: a `PromptRequest` for each prompt
plan              from a `PromptRequest` to a `Job` with its planned answer
job               a live request
text              the text of answers
directives        what lines of a prompt order to answer, with `--obey-prompts`
api               the JSON of answers
reply             sends answers, streamed or whole
"""
