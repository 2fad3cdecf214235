"""The programs and frameworks of docs/how-to/integrations.md, as they are installed by scripts/integrations."""
