"""The programs and frameworks of docs/integrations.md, as they are installed by scripts/integrations."""
