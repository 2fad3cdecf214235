"""What stops a launch. The message is for the person at the terminal: what is wrong, where, what to do."""


class LaunchError(Exception):
    """A launch that cannot begin or go on."""
