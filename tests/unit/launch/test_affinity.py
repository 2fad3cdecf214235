"""What is near each GPU, from outputs of `nvidia-smi topo -m`.

Both were published: of a node with eight B300 in a report of SGLang's environment, tabs and escapes included, and of a
virtual machine with four GPUs, whose host shows one NUMA node and the same link to all cards.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.plan.plans import kind

from warmroute_backend.launch.affinity import Affinity, Near, affinity, near_gpus
from warmroute_backend.launch.topology import Setting, mooncake_files, topology
from warmroute_backend.plan.deployment import Plan
from warmroute_cli.launch import start

GOLDEN = Path(__file__).with_name("golden")
B300 = (GOLDEN / "topo-8xB300.txt").read_text()
VM = (GOLDEN / "topo-4-of-a-vm.txt").read_text()
CARDS = {f"mlx5_{number}": 400.0 for number in range(10, 18)} | {"mlx5_bond_0": 200.0}


def test_each_gpu_has_its_own_card_and_the_numa_node_of_its_socket() -> None:
    found = near_gpus(B300, CARDS)
    assert found == tuple(Near(gpu // 4, (f"mlx5_{10 + gpu}",)) for gpu in range(8))


def test_a_card_that_is_down_is_replaced_by_the_nearest_fast_ones() -> None:
    found = near_gpus(B300, {name: rate for name, rate in CARDS.items() if name != "mlx5_14"})
    assert found[4].cards == ("mlx5_15", "mlx5_16", "mlx5_17"), "and not by the bond, which is slower"
    assert found[3].cards == ("mlx5_13",)


def test_all_cards_of_a_virtual_machine_are_equally_near() -> None:
    found = near_gpus(VM, {f"mlx5_{number}": 400.0 for number in range(8)})
    assert found == (Near(0, tuple(f"mlx5_{number}" for number in range(8))),) * 4


def test_what_makes_no_sense_tells_nothing() -> None:
    assert near_gpus("", CARDS) == ()
    assert near_gpus("No devices were found\n", CARDS) == ()
    assert [each.cards for each in near_gpus(B300, {})] == [()] * 8
    cut = near_gpus("\n".join(line[:40] for line in B300.splitlines()), CARDS)
    assert [each.numa_node for each in cut] == [None] * len(cut)


def test_without_a_gpu_in_the_middle_numbers_mean_others_and_nothing_is_told() -> None:
    assert near_gpus("\n".join(line for line in B300.splitlines() if not line.startswith("GPU3")), CARDS) == ()


def test_gpus_that_the_environment_renames_are_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "read_matrix", lambda: B300)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert len(start._near()) == 8
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert start._near() == ()


def over_nodes() -> Plan:
    """Prefill and decode on other nodes, with a store; the site names no cards."""
    plan = kind("over nodes")
    return replace(plan, site=replace(plan.site, ib_devices=""))


def test_an_engine_is_told_of_its_gpus_and_the_store_of_its_ranks() -> None:
    plan = over_nodes()
    setting = Setting("sglang", 0, Path("/state"), near=near_gpus(B300, CARDS))
    made = topology(plan, setting)
    command = made.programs[1].command
    assert command[command.index("--numa-node") + 1 :][:8] == ("0",) * 4 + ("1",) * 4
    by_gpu = json.loads(command[command.index("--disaggregation-ib-device") + 1])
    assert by_gpu == {str(gpu): f"mlx5_{10 + gpu}" for gpu in range(8)}
    assert "prefill-0: network cards are mlx5_10 of GPU 0, mlx5_11 of GPU 1" in "\n".join(made.notes)
    (config,) = mooncake_files(plan, setting).values()
    assert json.loads(config["device_name"]) == by_gpu

    wide = replace(plan.engines[0], nodes=2, shape=replace(plan.engines[0].shape, tp=16))
    (config,) = mooncake_files(replace(plan, engines=(wide,)), replace(setting, node=1)).values()
    assert list(json.loads(config["device_name"])) == [str(8 + at) for at in range(8)], "ranks count over all nodes"


def test_stages_have_a_card_for_each_gpu_and_the_store_all_cards_of_the_engine() -> None:
    """A stage has the GPUs of other ranks; SGLang gives the store the rank inside the stage, or the group."""
    plan = kind("pipeline stages")
    (engine,) = plan.engines
    stored = replace(engine, storage="mooncake")
    plan, found = replace(plan, engines=(stored,), site=replace(plan.site, ib_devices="")), near_gpus(B300, CARDS)
    cards = affinity(plan, stored, found).cards
    assert cards == tuple((gpu, f"mlx5_{10 + gpu}") for gpu in range(8))
    setting = Setting("sglang", 1, Path("/state"), near=found)
    for shape in (engine.shape, replace(engine.shape, pp=1, tp=16, attention_dp=16)):
        (config,) = mooncake_files(replace(plan, engines=(replace(stored, shape=shape),)), setting).values()
        assert config["device_name"] == ",".join(f"mlx5_{10 + gpu}" for gpu in range(8))


def test_what_the_site_has_chosen_stays() -> None:
    plan, found = kind("over nodes"), near_gpus(B300, CARDS)
    engine = plan.engines[0]
    assert affinity(plan, engine, found).cards == ()
    assert affinity(plan, engine, found).numa_nodes != ()
    visible = replace(plan, site=replace(plan.site, ib_devices="", environment=(("CUDA_VISIBLE_DEVICES", "4,5"),)))
    assert affinity(visible, engine, found) == Affinity()
    assert affinity(over_nodes(), engine, near_gpus(VM, CARDS)) == Affinity(), "fewer GPUs than the engine has"


def test_inside_a_node_no_card_is_needed() -> None:
    plan = kind("inside a node")
    assert affinity(plan, plan.engines[0], near_gpus(B300, CARDS)).cards == ()
