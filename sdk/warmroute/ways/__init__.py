"""The ways in besides `OpenAI`: clients of other libraries, and whatever is built on an http library."""
