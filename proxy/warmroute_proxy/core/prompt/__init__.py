"""A prompt without its text: a chain of hashes in template order, its sizes, and how long its tokens are.

It never renders a template or counts tokens: an engine does that. It never stores text.

messages          the JSON form of a message
parts             what the parts of a prompt were, without their text
breaks            the first part that differs from an earlier prompt, and its cause
addresses         which addresses of images, audio and files may stand in a prompt
canonical         the canonical bytes of each tool and message
fingerprint       a request's prompt as a chain of hashes
chain             the chain, and what is stored beside it
routing_request   what placement knows of a request
bytes_per_token   learned ratios of bytes to tokens
"""
