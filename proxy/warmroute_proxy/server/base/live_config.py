"""The config in force, for what reads it with each request of the control plane."""

from warmroute_proxy.server.base.config import Config


class LiveConfig:
    """Holds the config that was applied last. What keeps values of a config is given the new one by `reload`."""

    def __init__(self, config: Config) -> None:
        self.now = config

    def replace(self, config: Config) -> None:
        """Another config is in force."""
        self.now = config
