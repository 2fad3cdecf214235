"""The virtual clock: recorded traffic through the same core, over the engine's own model of its scheduler."""
