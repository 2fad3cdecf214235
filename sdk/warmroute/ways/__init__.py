"""Use warmroute without its `OpenAI` class: with clients of other libraries, or below an http library."""
