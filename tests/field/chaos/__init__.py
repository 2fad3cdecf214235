"""A proxy and eight engines under load while everything around them breaks; see docs/contribute/chaos.md."""
