"""Real SGLang, and machines that run it. The package imports neither the proxy nor the lab."""
