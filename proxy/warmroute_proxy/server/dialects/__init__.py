"""Requests of other APIs on the path of chat completions: translated as they come in, their answers on the way out.

What is said is translated by `warmroute_proxy.dialects`, which is pure. Here it meets a request and its exchange. The
room knows no engine or price: what runs in between is a chat completion like any other.

- dialect: what an API has to say for itself: how its requests and their answers are translated
- translation: a request of any dialect as one to `/v1/chat/completions`
- exchange: the exchange of such a request, which translates its answer
- token_counts: how many tokens a prompt has, by an engine where one can tell
- messages: Anthropic's messages
- responses: OpenAI's Responses
- responses_socket: the same over a WebSocket: streams of turns, each a request
- socket_turn: one of these turns
- kept_conversations: the conversations that WebSockets keep
- open_conversations: which of their conversations are over
- gemini: Gemini's API
- routes: which paths are whose
- other_apis: what clients of APIs are told that are not served here
"""
