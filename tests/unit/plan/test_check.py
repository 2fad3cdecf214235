"""A plan file that is edited into an impossibility gets a sentence for each."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.plan.plans import KINDS, kind, plan

from warmroute_backend.costs import Role
from warmroute_backend.plan.check import problems
from warmroute_backend.plan.choose import make_plan
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.plan_file import read, written
from warmroute_backend.plan.request import PlanRequest
from warmroute_cli.main import main


def text_of(name: str) -> str:
    return written(kind(name), KINDS[name][0])


def problems_of(text: str) -> list[str]:
    return problems(read(tomllib.loads(text), known_model, "plan.toml")[0])


def edited(name: str, pattern: str, value: str, count: int = 1) -> str:
    text, changed = re.subn(pattern, value, text_of(name), count=count, flags=re.MULTILINE)
    assert changed, pattern
    return text


IMPOSSIBLE = {
    "nothing left for activations": ("aggregated", r"^memory_fraction = .*", "memory_fraction = 0.995"),
    "less free than SGLang keeps": ("aggregated", r"^memory_fraction = .*", "memory_fraction = 0.96"),
    "a fraction below the weights": ("aggregated", r"^memory_fraction = .*", "memory_fraction = 0.4"),
    "a context above a rank": ("attention groups", r"^context_tokens = .*", "context_tokens = 163840000"),
    "GPUs that a node lacks": ("inside a node", r"^first_gpu = 4", "first_gpu = 6"),
    "GPUs of another engine": ("inside a node", r"^first_gpu = 4", "first_gpu = 2"),
    "a node that is not there": ("over nodes", r"^node = 3", "node = 4"),
    "more nodes than there are": ("aggregated", r"^nodes = 1", "nodes = 1000000000000"),
    "no groups, with a partner": ("over nodes", r"^attention_dp = .*", "attention_dp = 0"),
    "heads that do not divide": ("aggregated", r"^tp = 8", "tp = 6"),
    "groups that do not divide": ("aggregated", r"^attention_dp = 1", "attention_dp = 3"),
    "KV that its GPUs cannot divide": ("divided KV", r"^dcp = 8", "dcp = 3"),
    "KV of heads divided": ("inside a node", r"^dcp = 1", "dcp = 2"),
    "drafts beside divided KV": ("aggregated", r"^dcp = 1", "dcp = 8"),
    "experts that do not divide": ("aggregated", r"^ep = 1", "ep = 5"),
    "pages that differ": ("over nodes", r"^page_tokens = 64", "page_tokens = 32"),
    "KV types that differ": ("over nodes", r'^kv_dtype = "bf16"', 'kv_dtype = "fp8_e4m3"'),
    "a page that sparse attention lacks": ("attention groups", r"^page_tokens = 64", "page_tokens = 16"),
    "host memory that is not there": ("aggregated", r"^size_gb = .*", "size_gb = 900"),
    "a host pool below the GPU's": ("aggregated", r"^size_gb = .*", "size_gb = 1"),
    "LMCache beside HiCache": ("aggregated", r"^lmcache = false", "lmcache = true"),
    "a port twice": ("inside a node", r"^http = 30001", "http = 30000"),
    "a name twice": ("inside a node", r'^name = "decode-0"', 'name = "prefill-0"'),
    "one side of a pair": ("inside a node", r'^role = "decode"', 'role = "aggregated"'),
    "fp8 scales that do not divide": ("files", r"^ep = 2", "ep = 1"),
    "no request at all": ("aggregated", r"^running_requests = .*", "running_requests = 0"),
}


def test_a_pool_of_windows_has_room_for_a_request() -> None:
    found = make_plan(PlanRequest(known_model("llama-4-scout"), parse_cluster("8xH200")))
    assert problems(found) == []
    engine = found.engines[0]
    smaller = replace(engine, shape=replace(engine.shape, window_ratio=0.001))
    assert any("window_ratio 0.001 leaves" in each for each in problems(replace(found, engines=(smaller,))))


def test_stages_lie_evenly_on_nodes() -> None:
    """SGLang would start three of four stages on three nodes (`_calculate_rank_ranges`)."""
    found = plan("deepseek-r1", "3x8xH200", pp=3, split=(0, 0))
    assert problems(found) == []
    engine = found.engines[0]
    other = replace(engine, shape=replace(engine.shape, pp=4, tp=6, attention_dp=6))
    assert any("4 stages do not divide among 3 nodes" in each for each in problems(replace(found, engines=(other,))))


@pytest.mark.parametrize(
    ("name", "role", "change", "words"),
    [
        ("aggregated", "aggregated", {"pp": 2}, "pp 2 runs without drafts"),
        ("wide experts", "decode", {"pp": 2}, "decode engines are planned with one stage"),
        ("wide experts", "prefill", {"pp": 2}, "pp 2 runs without drafts, LMCache, dcp and all_to_all"),
        ("aggregated", "aggregated", {"all_to_all": "deepep"}, "takes tokens to experts of fp8"),
        ("wide experts", "prefill", {"redundant_experts": 31}, "does not divide both tp 32 and 287 experts"),
        ("aggregated", "aggregated", {"redundant_experts": 8}, "copies come with all_to_all deepep"),
        ("wide experts", "decode", {"graph_batch": 1025}, "DeepEP's kernels take 1024 tokens"),
        ("wide experts", "decode", {"running_requests": 72 * 1025}, "DeepEP's kernels take 1024 tokens"),
    ],
)
def test_what_stages_and_deepep_exclude_is_said(name: str, role: Role, change: dict[str, Any], words: str) -> None:
    made = kind(name)
    (engine,) = made.of(role)
    other = replace(engine, shape=replace(engine.shape, **change))
    rest = tuple(each for each in made.engines if each is not engine)
    assert any(words in each for each in problems(replace(made, engines=(other, *rest))))


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_an_impossible_edit_is_found(what: str) -> None:
    name, pattern, value = IMPOSSIBLE[what]
    found = problems_of(edited(name, pattern, value))
    assert found
    assert all(sentence.endswith((".", ")")) for sentence in found)


@pytest.mark.parametrize(
    ("pattern", "value", "word"),
    [
        (r"^tp = 8", "tpp = 8", "known are"),
        (r"^tp = 8", 'tp = "8"', r"engine\[0\].tp is '8', which is not a whole number\."),
        (r"^http = .*", "http = 0", r"ports.http is 0, which is not a whole number of at least 1 and at most 65535\."),
        (r"^tp = 8", "tp = true", r"tp is True, which is not a whole number\."),
        (r"^memory_fraction = .*", 'memory_fraction = "all"', r"memory_fraction is 'all', which is not a number\."),
        (r"^lmcache = false", "lmcache = 0", r"lmcache is 0, which is not true or false\."),
        (r'^kv_dtype = "bf16"', 'kv_dtype = "fp8"', r"kv_dtype is 'fp8', which is not one of bf16, fp8_e4m3, nvfp4\."),
        (r'^namespace = "default"', "namespace = 1", r"site.namespace is 1, which is not a text\."),
        (r"^hosts = \[\]", 'hosts = ["a", 1]', r"site.hosts is \['a', 1\], which is not a list of texts\."),
        (r"^\[site.environment\]", "[site.environment]\nA = 1", "site.environment is not a table of texts"),
        (r'^role = "aggregated"', 'role = "both"', "prefill"),
        (r'^model = "kimi-k2.5"', 'model = "kimi"', "kimi-k2"),
        (r'^gpus = "8xH200"', 'gpus = "8xH2000"', "H200"),
        (r"^version = 1", "version = 2", "version"),
        (r"^tp = 8\n", "", r"engine\[0\] lacks tp\."),
        (r"^tp = 8\nattention_dp = .*\n", "", r"engine\[0\] lacks tp, attention_dp\."),
        (
            r"^\[plan\]",
            '[[gpu]]\nname = "H999"\nmemory_mib = 5\n[plan]',
            r"gpu\[0\] lacks context_mib, bandwidth_gb_s, .*nic_gbit_s",
        ),
        (
            r"^\[plan\]",
            '[[gpu]]\nname = "H200"\nnics = -1\n[plan]',
            r"nics is -1, which is not a whole number of at least 0\.",
        ),
        (r'^storage = "none"', 'storage = "disk"', "mooncake"),
        (r'^objective = "latency"', 'objective = "speed"', "throughput"),
    ],
)
def test_a_key_that_is_wrong_is_named(pattern: str, value: str, word: str) -> None:
    with pytest.raises(PlanError, match=word):
        problems_of(edited("aggregated", pattern, value))


def test_the_command_checks_a_file_and_writes_its_files_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(text_of("inside a node"))
    assert main(["plan", "--check", str(file), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "plan.toml").read_text() == file.read_text()
    file.write_text(edited("inside a node", r"^memory_fraction = .*", "memory_fraction = 0.05"))
    assert main(["plan", "--check", str(file)]) == 1
    assert "it has to be above" in capsys.readouterr().err
