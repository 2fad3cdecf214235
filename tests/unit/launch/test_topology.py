"""What a node runs of a plan, in each of the three ways."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.plan.plans import kind

from warmroute_backend.launch.fast_start import presharded_dir
from warmroute_backend.launch.topology import Setting, config_files, here, topology
from warmroute_backend.plan.argv import argv
from warmroute_backend.plan.deployment import Speculation
from warmroute_backend.ports import Ports
from warmroute_backend.sglang.command import arguments
from warmroute_backend.sglang.installation import Installation
from warmroute_cli.launch import start
from warmroute_cli.main import parser

STATE = Path("/state")


def test_a_node_runs_its_own_part_and_the_first_one_the_store() -> None:
    plan = kind("over nodes")
    first = topology(plan, Setting("sglang", 0, STATE, python="/sglang/python"))
    assert [(program.name, program.kind) for program in first.programs] == [
        ("mooncake-master", "store"),
        ("prefill-0", "prefill"),
    ]
    assert first.programs[0].command[0] == "/sglang/mooncake_master"
    assert first.programs[1].command == ("/sglang/python", *argv(plan, plan.engines[0])[1:])
    assert (
        dict(first.programs[1].environment)["SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"] == "/state/mooncake-prefill-0.json"
    )
    second = topology(plan, Setting("sglang", 1, STATE))
    assert [program.kind for program in second.programs] == ["decode"]
    assert first.notes == second.notes == ()


def test_an_engine_with_lmcache_runs_behind_its_daemon_and_reads_where_that_listens() -> None:
    plan = kind("LMCache")
    setting = Setting("sglang", 0, STATE, python="/sglang/python")
    daemon, engine = topology(plan, setting).programs
    assert daemon.command[:2] == ("/sglang/lmcache", "server")
    assert (daemon.stage, daemon.ready_path, daemon.is_engine) == (0, "/healthcheck", False)
    assert dict(daemon.ports) == {"http": plan.site.lmcache_http_port, "kv": plan.site.lmcache_port}
    assert dict(daemon.environment)["LMCACHE_TRACK_USAGE"] == "false"
    assert engine.needs == (daemon.name,), "an engine without its daemon answers no request"
    assert engine.command[engine.command.index("--lmcache-config-file") + 1] == "/state/lmcache.yaml"
    assert config_files(plan, setting) == {"lmcache.yaml": f"mp_host: 127.0.0.1\nmp_port: {plan.site.lmcache_port}\n"}


def test_an_engine_of_two_nodes_serves_on_its_first_one() -> None:
    plan = kind("an engine of two nodes")
    first, second = (topology(plan, Setting("sglang", node, STATE)).programs[-1] for node in (0, 1))
    assert first.ready_path == "/ready"
    assert second.ports == ()
    assert second.expected is None
    assert second.command[second.command.index("--node-rank") + 1] == "1"


def test_a_fast_restart_keeps_weights_in_gpu_memory_or_pre_sharded() -> None:
    plan = kind("attention groups")
    engine = replace(plan.engines[0], speculation=None)
    setting = Setting("sglang", 0, STATE, python="/sglang/python", cache_dir=Path("/cache"))
    made = topology(replace(plan, engines=(engine,)), setting)
    daemon, server = made.programs
    assert (daemon.name, daemon.kind, server.needs) == (f"{engine.name}-weights", "weights", (daemon.name,))
    assert daemon.command[:3] == ("/sglang/python", "-m", "sglang.srt.weight_cache.daemon")
    assert server.command[:3] == ("/sglang/python", "-m", "sglang.launch_server")
    assert server.command[3:] == (*daemon.command[3:], "--weight-cache-mode", "client"), "the same shape"
    assert made.notes == (f"{engine.name}: restarts map weights that stay in GPU memory",)

    drafting = replace(engine, speculation=Speculation("EAGLE", path="/draft", steps=3, topk=1, draft_tokens=4,
        accept_length=2.5, source="", largest_batch=8))  # fmt: skip
    made = topology(replace(plan, engines=(drafting,)), setting)
    (server,) = made.programs
    assert server.source == "presharded"
    folders = json.loads(server.command[server.command.index("--model-loader-extra-config") + 1])
    assert set(folders) == {"presharded_path", "draft_presharded_path"}
    assert "since the weight cache excludes drafts" in made.notes[0]


def test_each_checkpoint_and_each_engine_has_its_pre_sharded_files() -> None:
    """SGLang tells them apart by shapes alone, and two engines that write the same ones remove each other's."""
    plan = kind("inside a node")
    plan = replace(plan, engines=tuple(replace(engine, speculation=None) for engine in plan.engines))
    setting = Setting("sglang", 0, STATE, cache_dir=Path("/cache"))
    finetuned = replace(plan, site=replace(plan.site, model_path="/models/finetuned"))
    found = []
    for each in (plan, finetuned):
        commands = [program.command for program in topology(each, setting).programs if program.source == "presharded"]
        found += [command[command.index("--model-loader-extra-config") + 1] for command in commands]
    folders = [folder for text in found for folder in json.loads(text).values()]
    assert len(folders) == len(set(folders)) == 4
    assert all(folder.startswith("/cache/presharded") for folder in folders)


def test_pre_sharded_files_that_do_not_fit_are_refused_once(tmp_path: Path) -> None:
    plan = kind("inside a node")
    programs = topology(plan, Setting("sglang", 0, STATE, cache_dir=tmp_path)).programs
    huge = replace(plan, model=replace(plan.model, layers=10**9))
    (refusal,) = start._lacks_disk(huge, list(programs), tmp_path)
    assert refusal.startswith("--fast-restart writes ")
    for program in programs:
        presharded_dir(plan, program.name, tmp_path).mkdir(parents=True)
    assert start._lacks_disk(huge, list(programs), tmp_path) == []


def test_an_engine_over_nodes_and_other_formats_are_not_given_what_sglang_refuses() -> None:
    over_nodes = kind("an engine of two nodes")
    setting = Setting("sglang", 0, STATE, cache_dir=Path("/cache"))
    assert topology(over_nodes, setting).programs == topology(over_nodes, Setting("sglang", 0, STATE)).programs
    plan = kind("inside a node")
    plan = replace(plan, engines=tuple(replace(engine, speculation=None) for engine in plan.engines))
    mxfp4 = topology(plan, setting)
    assert {program.source for program in mxfp4.programs} == {"presharded"}
    assert "not verified for mxfp4" in mxfp4.notes[0]


def test_a_trial_runs_all_nodes_on_one_machine_and_no_port_twice() -> None:
    plan = here(kind("over nodes"))
    programs = topology(plan, Setting("embedded", 0, STATE)).programs
    assert len(programs) == 4
    ports = [port for program in programs for _, port in program.ports]
    assert len(set(ports)) == len(ports)
    assert set(plan.site.hosts) == {"127.0.0.1"}


def test_embedded_engines_have_the_pools_of_the_plan() -> None:
    plan = here(kind("aggregated"))
    (program,) = topology(plan, Setting("embedded", 0, STATE)).programs
    memory = plan.memory(plan.engines[0])
    assert program.expected is not None
    assert program.expected.tokens == memory.tokens
    assert program.command[program.command.index("--kv-tokens") + 1] == str(memory.tokens)
    assert program.command[program.command.index("--dp-size") + 1] == str(plan.engines[0].ranks)


@pytest.mark.parametrize("name", ["inside a node", "files", "over nodes"])
def test_on_a_cpu_engines_keep_their_roles_and_say_what_they_leave_out(name: str) -> None:
    plan = here(kind(name))
    found = Installation(Path("/py"), Path("/launch.py"), Path("/model"))
    made = topology(plan, Setting("sglang-cpu", 0, STATE, installation=found))
    engines = [program for program in made.programs if program.is_engine]
    assert sorted(program.kind for program in engines) == sorted(engine.role for engine in plan.engines)
    assert any("the model is the tiny one" in note for note in made.notes)
    for program in engines:
        assert ("--disaggregation-mode" in program.command) == (program.kind != "aggregated")
        assert "WARMROUTE_PARENT_PID" not in dict(program.environment)


@pytest.mark.parametrize("words", [[], ["--proxy-config", "/etc/warmroute/warmroute.toml"]])
def test_no_other_node_than_the_first_starts_a_proxy(words: list[str], tmp_path: Path) -> None:
    """All nodes have one unit, and so one command line but for the number."""
    made = {}
    for node in (0, 1):
        line = ["launch", "/etc/warmroute/plan.toml", "--node", str(node), *words]
        made[node] = start.proxy_path(parser().parse_args(line), kind("over nodes"), tmp_path)
    assert made[1] is None
    assert made[0] is not None
    assert str(made[0]) == (words[1] if words else "/etc/warmroute/proxy.toml")


def test_a_single_server_on_a_cpu_has_tiers_below_its_pool_unless_it_is_told_not_to() -> None:
    found = Installation(Path("python"), Path("launcher"), Path("model"))
    ports = Ports(1, 2, 3, 4, 5)
    with_tiers, without = (arguments("aggregated", ports, found, tiers=tiers) for tiers in (True, False))
    assert "--enable-hierarchical-cache" in with_tiers
    assert with_tiers[: len(without)] == without
    assert "--hicache-storage-backend" not in without
