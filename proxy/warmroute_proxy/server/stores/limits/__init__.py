"""The limits of a request: those that this process counts alone, and those that all proxies share."""
