"""The page of the admin port in Debian's Chromium. `scripts/page` runs it, in an environment of its own."""
