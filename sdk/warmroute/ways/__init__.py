"""Ways to use warmroute without its `OpenAI` class: with other client libraries, or below an HTTP library."""
