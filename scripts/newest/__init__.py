"""Programs and libraries at the newest versions of the registries: what changed against the pins."""
