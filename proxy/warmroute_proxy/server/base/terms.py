"""What the translation of a request depends on besides its body: the tenant's key and the model's rules."""

from typing import NamedTuple

from warmroute_proxy.normalising.texts import Texts
from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.secrets import Secrets


class Terms(NamedTuple):
    tenant: TenantConfig
    secrets: Secrets
    config: Config

    def reasoning_key(self, use: str) -> bytes:
        """The key of the tenant's share group for reasoning that a client sends back."""
        return self.secrets.reasoning_key(self.tenant.share_group, use)

    def texts(self, model_name: str) -> Texts:
        """The normalising rules of a model, which remove texts that would spoil a prompt's prefix."""
        model = self.config.model_of(model_name)
        return Texts(frozenset() if model is None else model.normalise)
