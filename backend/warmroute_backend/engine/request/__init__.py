"""One request: what it asks for, what its answer will be, and how the client gets it.

Nothing here schedules: an answer is planned whole, and sent token by token when the engine calls.

ask      a request body, checked: an `Ask` for each prompt
plan     from an `Ask` to a `Job` with its planned answer
job      a live request
text     the text of answers
api      the JSON of answers
reply    sends answers, streamed or whole
"""
