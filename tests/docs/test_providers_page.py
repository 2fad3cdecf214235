"""The page of providers says what the table does."""

from pathlib import Path

import pytest

from warmroute.contract.providers import PROVIDERS, provider_of

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "providers.md").read_text()


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_row_of_a_provider_has_its_signal_and_its_hosts(name: str) -> None:
    provider = PROVIDERS[name]
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    _, _, signal, keeps, hosts, source, _ = row.split("|")
    said = f"header `{provider.header}`" if provider.header else f"member `{provider.field}`"
    assert (said if provider.header or provider.field else "none") in signal
    assert ("`cache_salt`" in signal) == provider.salted
    also = [f"`{name}`" for name in (provider.parent_header, provider.cookie) if name]
    assert all(name in signal for name in also)
    kept = [f"{provider.ttl_s} s"] * bool(provider.ttl_s) + [f"from {provider.min_tokens:,} tokens"] * bool(
        provider.min_tokens
    )
    assert keeps.strip() == ", ".join(kept)
    assert hosts.strip() == ", ".join(f"`{host}`" for host in provider.hosts)
    assert source.strip()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://openrouter.ai/api", "openrouter"),
        ("https://eu.api.openai.com", "openai"),
        ("https://notopenrouter.ai", ""),
        ("http://127.0.0.1:8000", ""),
        ("", ""),
    ],
)
def test_a_url_is_of_the_provider_whose_host_it_has(url: str, name: str) -> None:
    assert provider_of(url) == name
