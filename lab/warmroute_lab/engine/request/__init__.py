"""One request: its body, its planned answer, and how the client gets it.

No module here schedules. An answer is planned whole; its tokens are sent one by one, when the engine has modelled them.
"""
