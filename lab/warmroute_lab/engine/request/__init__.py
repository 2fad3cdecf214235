"""One request: its body, its planned answer, and how the client gets it.

Nothing here schedules: an answer is planned whole, and sent token by token when the engine calls.
"""
