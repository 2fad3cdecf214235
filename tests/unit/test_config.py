"""A config is either whole, or every problem with it is named in one line."""
# ruff: noqa: E501 - one fault a line reads best

import dataclasses
import hashlib
from pathlib import Path

import pytest

from warmroute.contract.money import Rates
from warmroute.contract.providers import UNKNOWN
from warmroute_proxy.core.accounting.price_books import PriceBook
from warmroute_proxy.server.base.config import Config, Limits
from warmroute_proxy.server.base.config_file import ConfigError, load_config

DIGEST = hashlib.sha256(b"wr-1").hexdigest()
GOOD = f"""
[proxy]
region = "east"
state_dir = ".warmroute/east"

[secret]
file = "secret"

[ledger]
sync = "disk"

[limits]
body_bytes = 1048576
head_timeout_s = 3

[[region]]
name = "east"

[[region]]
name = "west"
url = "http://127.0.0.1:9002/"
rtt_ms = 35

[[engine]]
url = "http://127.0.0.1:7001"
region = "east"
role = "prefill"
bootstrap_port = 8998

[[engine]]
url = "http://127.0.0.1:7002"
region = "east"
role = "decode"

[[engine]]
id = "west-box"
url = "https://engine.example/base"
region = "west"
kind = "openai"
models = ["qwen3"]

[[model]]
name = "qwen3"
aliases = ["qwen3-coder"]
input = "0.60"
cached = "0.10"
output = "3.00"

[[tenant]]
name = "acme"
key_sha256 = ["{DIGEST}"]
regions = ["east"]
"""


def load(text: str, folder: Path) -> Config:
    path = folder / "warmroute.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path)


def problems(text: str, folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, folder)
    assert all("\n" not in problem for problem in caught.value.problems)
    return caught.value.problems


def test_a_whole_config(tmp_path: Path) -> None:
    config = load(GOOD, tmp_path)
    assert config.proxy.state_dir == tmp_path / ".warmroute/east"
    assert config.secret_file == tmp_path / "secret"
    assert (config.proxy.host, config.proxy.port, config.proxy.policy) == ("127.0.0.1", 0, "cost")
    assert config.ledger_sync == "disk"
    assert (config.limits.body_bytes, config.limits.head_timeout_s, config.limits.connections) == (1_048_576, 3.0, 4096)
    assert [engine.id for engine in config.engines] == ["east-prefill-0", "east-decode-0", "west-box"]
    assert config.engines[2].models == {"qwen3"}
    assert config.engines[0].models == {"*"}
    assert config.regions[1].url == "http://127.0.0.1:9002"
    assert config.model_by_name["qwen3-coder"] is config.model_by_name["qwen3"]
    assert config.model_by_name["qwen3"].books == (PriceBook(Rates(600_000, 100_000, 3_000_000, "config")),)
    assert config.tenant_by_name["acme"].share_group == "acme"
    assert config.tenant_by_sha256() == {DIGEST: "acme"}


def test_limits_that_are_not_written_are_the_documented_ones(tmp_path: Path) -> None:
    text = GOOD.replace("body_bytes = 1048576\nhead_timeout_s = 3\n", "")
    assert load(text, tmp_path).limits == Limits()


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits) if field.default is not True])
def test_every_limit_has_bounds(name: str, tmp_path: Path) -> None:
    text = GOOD.replace("body_bytes = 1048576\nhead_timeout_s = 3", f"{name} = -1")
    (problem,) = problems(text, tmp_path)
    assert problem.startswith(f"limits.{name}: -1 is not between")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('role = "prefill"', 'role = "prefil"', 'engine[0].role: "prefil" is not one of aggregated, prefill, decode (did you mean "prefill"?)'),
        ("body_bytes = 1048576", "body_byte = 1", 'limits.body_byte: unknown key (did you mean "body_bytes"?)'),
        ("[ledger]", "[leger]", 'leger: unknown table (did you mean "ledger"?)'),
        ("body_bytes = 1048576", 'body_bytes = "1"', 'limits.body_bytes: must be an integer, not "1"'),
        ("body_bytes = 1048576", "body_bytes = true", "limits.body_bytes: must be an integer, not true"),
        ("head_timeout_s = 3", "head_timeout_s = nan", "limits.head_timeout_s: NaN is not between 0.05 and 3600.0"),
        ('region = "east"\nstate', 'region = "eats"\nstate', 'proxy.region: "eats" is not a [[region]] (did you mean "east"?)'),
        ('region = "west"\nkind', 'region = "wets"\nkind', 'engine[2].region: "wets" is not a [[region]] (did you mean "west"?)'),
        ("http://127.0.0.1:7001", "127.0.0.1:7001", 'engine[0].url: "127.0.0.1:7001" must start with http:// or https://'),
        ("http://127.0.0.1:7001", "http://:7001", 'engine[0].url: "http://:7001" names no host and port that can be reached'),
        ("http://127.0.0.1:7001", "http://127.0.0.1:77001", 'engine[0].url: "http://127.0.0.1:77001" is not a URL: Port out of range 0-65535'),
        ("http://127.0.0.1:7001", "http://a:b@h:1", 'engine[0].url: "h:1" must be an address only: no user, query or fragment'),
        ("http://127.0.0.1:7001", "http://h:1?key=b", 'engine[0].url: "http://h:1" must be an address only: no user, query or fragment'),
        ("http://127.0.0.1:7001", "http://h:1#b", 'engine[0].url: "http://h:1" must be an address only: no user, query or fragment'),
        ("http://127.0.0.1:7001", "http://h:1?key=a@b", 'engine[0].url: "..." must be an address only: no user, query or fragment'),
        ("[ledger]", '[ledger]\ndsn_file = "postgresql://a:b@h/n"', "ledger.dsn_file: is an address: write the address into a file, and name the file here"),
        ('file = "secret"', 'file = "s://a:b"', "secret.file: is an address: write the address into a file, and name the file here"),
        ('kind = "openai"', 'kind = "openai"\nkey_file = "s://a:b"', "engine[2].key_file: is an address: write the address into a file, and name the file here"),
        ("http://127.0.0.1:7002", "http://127.0.0.1:7001/", 'engine[1].url: "http://127.0.0.1:7001" is taken by engine[0]'),
        ('id = "west-box"', 'id = "east-decode-0"', 'engine[2].id: "east-decode-0" is taken by engine[1]'),
        ('models = ["qwen3"]', 'models = ["qwen"]', 'engine[2].models: "qwen" is the name of no [[model]] (did you mean "qwen3"?)'),
        ('cached = "0.10"', "", "model[0].cached: is missing"),
        ('cached = "0.10"', "cached = 0.10", 'model[0].cached: must be a string that is not empty, not 0.1; write it in quotes: cached = "0.1"'),
        ('cached = "0.10"', 'cached = "cheap"', "model[0].cached: 'cheap' is not a decimal number (USD per million tokens)"),
        ('input = "0.60"', "input = 0.60", 'model[0].input: must be a string that is not empty, not 0.6; write it in quotes: input = "0.6"'),
        ('cached = "0.10"', 'cached = "0.70"', "model[0].cached: is above the input price: a cached token would cost more than an uncached one"),
        ('aliases = ["qwen3-coder"]', 'aliases = ["qwen3"]', 'model[0].aliases: "qwen3" already names model "qwen3"'),
        ('role = "decode"', 'role = "aggregated"', 'engine: region "east" has prefill engines but none with role "decode"'),
        ("bootstrap_port = 8998", "", "engine[0].bootstrap_port: is missing: decode engines fetch the KV cache there"),
        ('role = "decode"', 'role = "decode"\nbootstrap_port = 1', "engine[1].bootstrap_port: is for prefill engines, this one is decode"),
        (f'key_sha256 = ["{DIGEST}"]', "", "tenant[0].key_sha256: is missing"),
        (f'["{DIGEST}"]', "[]", "tenant[0].key_sha256: must be a list of SHA-256 digests of API keys, at least one"),
        (f'["{DIGEST}"]', '["wr-0123"]', "tenant[0].key_sha256[0]: is not a SHA-256 in hex (64 digits)"),
        ('regions = ["east"]', 'regions = ["easst"]', 'tenant[0].regions: "easst" is not a [[region]] (did you mean "east"?)'),
        ('regions = ["east"]', "cached_weight = 0.1", "tenant[0].cached_weight: is for tokens_per_minute, which is missing: add it, or leave cached_weight out"),
        ('regions = ["east"]', 'models = ["qwen4"]', 'tenant[0].models: "qwen4" is not a [[model]] (did you mean "qwen3"?)'),
        ('regions = ["east"]', 'default_priority = "backgroud"', 'tenant[0].default_priority: "backgroud" is not one of interactive, normal, background (did you mean "background"?)'),
        ('regions = ["east"]', "default_priority = 2", "tenant[0].default_priority: 2 is not one of interactive, normal, background"),
        ('url = "http://127.0.0.1:9002/"', "", "region[1].url: is missing; only the own region (east) has none"),
        ("[ledger]", '[[budget]]\nname = "b"\ntenants = ["acme"]\nusd_per_day = "1e999999"\n[ledger]', 'budget[0].usd_per_day: "1e999999" is not an amount above 0 of USD, written like "12.50"'),
        ("[proxy]", "[[proxy]]", "proxy: must be a table, written [proxy]"),
        ('name = "acme"', 'name = "ac me"', 'tenant[0].name: "ac me" is not a name: up to 128 letters, digits and ._:/@+-'),
    ],
)  # fmt: skip
def test_each_fault_is_named(old: str, new: str, expected: str, tmp_path: Path) -> None:
    assert GOOD.count(old) >= 1
    assert expected in problems(GOOD.replace(old, new, 1), tmp_path)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    text = GOOD.replace('"prefill"', '"prefil"').replace("rtt_ms = 35", "rtt = 35").replace('"disk"', '"dsk"')
    found = problems(text, tmp_path)
    assert [problem.split(":")[0] for problem in found if "did you mean" in problem] == [
        "ledger.sync",
        "region[1].rtt",
        "engine[0].role",
    ]


def test_a_key_that_was_pasted_instead_of_its_digest_is_not_shown(tmp_path: Path) -> None:
    assert "wr-canary" not in str(problems(GOOD.replace(DIGEST, "wr-canary"), tmp_path))


def test_two_tenants_cannot_have_one_key(tmp_path: Path) -> None:
    second = f'[[tenant]]\nname = "other"\nkey_sha256 = ["{DIGEST.upper()}"]\n'
    assert problems(GOOD + second, tmp_path) == ['tenant[1].key_sha256[0]: is also a key of tenant "acme"']


@pytest.mark.parametrize(
    "text", ["", "region = 1", "[[engine]]\nurl = 3", "proxy = 1\nengine = 2\nregion = [1]\nmodel = []"]
)
def test_any_toml_gives_problems_not_a_traceback(text: str, tmp_path: Path) -> None:
    assert problems(text, tmp_path)


def test_a_file_that_is_missing_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml")
    assert "is not TOML" in problems("[proxy\n", tmp_path)[0]


def test_an_engine_without_salts_is_for_one_share_group(tmp_path: Path) -> None:
    other = f"""
[[tenant]]
name = "other"
key_sha256 = ["{hashlib.sha256(b"wr-2").hexdigest()}"]
"""
    shared = GOOD.replace('regions = ["east"]', "") + other
    (problem,) = problems(shared, tmp_path)
    assert problem.startswith('engine[2].kind: "openai" takes no cache salt')
    assert load(shared + 'share_group = "acme"', tmp_path)
    assert load(GOOD + other, tmp_path)  # acme stays in the east


def test_a_provider_is_named_or_known_by_its_host(tmp_path: Path) -> None:
    assert load(GOOD, tmp_path).engines[2].provider == UNKNOWN
    named = GOOD.replace('kind = "openai"', 'kind = "openai"\nprovider = "vllm"')
    assert load(named, tmp_path).engines[2].provider.salted
    hosted = GOOD.replace("https://engine.example/base", "https://api.x.ai")
    assert load(hosted, tmp_path).engines[2].provider.header == "x-grok-conv-id"
    (problem,) = problems(named.replace('"vllm"', '"openruoter"'), tmp_path)
    assert problem.startswith('engine[2].provider: "openruoter" is not one of ')
    assert problem.endswith('(did you mean "openrouter"?)')


def test_a_provider_may_call_a_model_otherwise(tmp_path: Path) -> None:
    text = GOOD.replace('kind = "openai"', 'kind = "openai"\nmodel_names = { qwen3 = "Qwen/Qwen3" }')
    assert load(text, tmp_path).engines[2].model_names == {"qwen3": "Qwen/Qwen3"}
    (problem,) = problems(text.replace("{ qwen3 =", "{ qwen4 ="), tmp_path)
    assert problem == 'engine[2].model_names: "qwen4" is the name of no [[model]] (did you mean "qwen3"?)'
    assert problems(text.replace('{ qwen3 = "Qwen/Qwen3" }', '"Qwen"'), tmp_path)[0].startswith("engine[2].model_names")


@pytest.mark.parametrize("key", ['provider = "vllm"', 'model_names = { qwen3 = "x" }'])
def test_what_is_for_other_servers_is_no_key_of_sglang(tmp_path: Path, key: str) -> None:
    (problem,) = problems(GOOD.replace('role = "decode"', f'role = "decode"\n{key}'), tmp_path)
    assert problem == f'engine[1].{key.split(maxsplit=1)[0]}: is for engines with kind = "openai"'


def test_a_store_is_shared_by_name_and_events_are_followed_unless_told_not_to(tmp_path: Path) -> None:
    text = GOOD.replace('role = "decode"', 'role = "decode"\nstore = "pool"\nkv_events = "off"')
    found = [(engine.store, engine.kv_events) for engine in load(text, tmp_path).engines]
    assert found == [(None, True), ("pool", False), (None, True)]
    assert problems(text.replace('"off"', '"never"'), tmp_path)[0].startswith("engine[1].kv_events")


def test_the_keys_of_an_engine_are_in_files_beside_the_config(tmp_path: Path) -> None:
    text = GOOD.replace('role = "decode"', 'role = "decode"\nkey_file = "keys/decode"\nadmin_key_file = "/run/admin"')
    found = [(engine.key_file, engine.admin_key_file) for engine in load(text, tmp_path).engines]
    assert found == [(None, None), (tmp_path / "keys/decode", Path("/run/admin")), (None, None)]
    openai = GOOD.replace('kind = "openai"', 'kind = "openai"\nadmin_key_file = "admin"')
    assert problems(openai, tmp_path)[0].startswith("engine[2].admin_key_file")
    assert "sk-1" not in problems(GOOD.replace('role = "decode"', 'role = "decode"\nkey = "sk-1"'), tmp_path)[0]


def test_only_an_engine_over_tls_has_an_http_proxy(tmp_path: Path) -> None:
    secure = GOOD.replace('kind = "openai"', 'kind = "openai"\nhttp_proxy = "http://proxy.example:3128"')
    plain = GOOD.replace('role = "decode"', 'role = "decode"\nhttp_proxy = "http://proxy.example:3128"')
    assert problems(plain, tmp_path) == ["engine[1].http_proxy: is for engines whose url begins with https://"]
    assert load(secure, tmp_path).engines[2].http_proxy == "http://proxy.example:3128"
    assert problems(secure.replace("http://proxy", "https://proxy"), tmp_path)[0].startswith("engine[2].http_proxy")


def test_a_budget_of_a_key_that_no_tenant_has_is_refused(tmp_path: Path) -> None:
    text = GOOD + f'\n[[budget]]\nname = "b"\nkeys = ["c-{DIGEST[:10]}"]\nusd_per_day = "1"\n'
    assert load(text, tmp_path).budgets[0].scope.keys == (f"c-{DIGEST[:10]}",)
    (problem,) = problems(text.replace(f"c-{DIGEST[:10]}", "k-0123456789"), tmp_path)
    assert problem.startswith('budget[0].keys: "k-0123456789" is not a key of a [[tenant]]')
    stored = text.replace(f"c-{DIGEST[:10]}", "k-0123456789").replace("[ledger]", '[ledger]\ndsn_file = "dsn"')
    assert load(stored, tmp_path).budgets  # the database may have it


OTHERS = GOOD.replace("[proxy]", '[proxy]\nother_proxies = ["http://127.0.0.1:9001"]')
USD = '[[budget]]\nname = "team"\ntenants = ["acme"]\nusd_per_day = "5"\n'
PER_MINUTE = '[[budget]]\nname = "fast"\ntenants = ["acme"]\ntokens_per_minute = 9\n'
DATABASE = OTHERS.replace("[ledger]", '[ledger]\ndsn_file = "dsn"')
REDIS = '[redis]\nurl_file = "redis"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OTHERS + USD, "budget: each proxy would spend team: it needs dsn_file of [ledger]"),
        (OTHERS + PER_MINUTE, "budget: each proxy would count the limits of fast alone: they need [redis]"),
        (DATABASE + PER_MINUTE, "budget: each proxy would count the limits of fast alone: they need [redis]"),
        (
            OTHERS + "requests_at_once = 4\n",
            "tenant: each proxy would count the limits of acme alone: they need [redis]",
        ),
    ],
)
def test_several_proxies_do_not_each_spend_a_limit_unless_the_config_says_so(
    text: str, reason: str, tmp_path: Path
) -> None:
    (problem,) = problems(text, tmp_path)
    assert problem.startswith(reason)
    assert "counts_alone = true" in problem
    assert load(text.replace("[proxy]", "[proxy]\ncounts_alone = true"), tmp_path).proxy.counts_alone
    one_proxy = text.replace('other_proxies = ["http://127.0.0.1:9001"]\n', "")
    assert not load(one_proxy, tmp_path).proxy.other_proxies


def test_several_regions_do_not_each_spend_a_budget_unless_the_config_says_so(tmp_path: Path) -> None:
    text = GOOD.replace('regions = ["east"]', "") + USD
    (problem,) = problems(text, tmp_path)
    assert problem.startswith("budget: each region would spend team: it needs dsn_file of [ledger]")
    for served in (
        text.replace("[proxy]", "[proxy]\ncounts_alone = true"),
        text.replace("[ledger]", '[ledger]\ndsn_file = "dsn"'),
        GOOD + USD,  # the tenant is served in one region alone
    ):
        assert load(served, tmp_path).budgets


@pytest.mark.parametrize(
    "text", [OTHERS, DATABASE + USD, DATABASE + USD + PER_MINUTE + REDIS, OTHERS + "tokens_at_once = 9\n"]
)
def test_several_proxies_share_what_their_stores_count(text: str, tmp_path: Path) -> None:
    assert load(text, tmp_path).proxy.other_proxies
