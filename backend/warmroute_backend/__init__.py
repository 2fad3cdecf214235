"""Real SGLang, and machines that run it. No module imports the proxy; only `engine` imports the lab."""
