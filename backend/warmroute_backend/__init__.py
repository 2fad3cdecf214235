"""What serves the tokens: the embedded engine, a model of one that speaks the same protocol."""
