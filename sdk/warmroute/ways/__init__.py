"""The ways in besides `OpenAI`: clients of other libraries, and whatever is built on an http library.

wrap          clients of openai, anthropic, google-genai and mistralai, of the type that they were
transport     a transport of httpx or httpx2
connections   WebSockets of openai's Responses
answer_bytes  the usage in the bytes of an answer
"""
