"""Ways to use warmroute without its `OpenAI` class: by clients of other libraries, or below an http library."""
