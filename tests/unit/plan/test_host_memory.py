"""What the processes of a plan pin of a node's memory, by the rules of SGLang, read from the files of the plan."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.plan.plans import request

from warmroute_backend.plan.argv import argv, environment, mooncake_file
from warmroute_backend.plan.check import problems
from warmroute_backend.plan.choose import make_plan
from warmroute_backend.plan.deployment import Plan, PlannedEngine, Site
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.files.bundle import deployment_files
from warmroute_backend.plan.models import MODELS, known_model, names_of
from warmroute_backend.plan.speculation import draft_of
from warmroute_backend.plan.tiers import RESERVE_GIB, rank_segment_bytes
from warmroute_backend.plan.words import Storage

pytestmark = pytest.mark.full

CLUSTERS: list[tuple[str, dict[str, Any]]] = [
    ("8xH200", {}),
    ("8xB200", {"objective": "throughput"}),
    ("8xH100", {"split": (4, 4), "storage": "mooncake"}),
    ("2x8xH200", {"objective": "throughput"}),
    ("2x8xH200", {"split": (8, 8)}),
    ("2x8xH200", {"split": (8, 8), "site": Site(store_disk_gb=8000)}),
    ("2x8xH200", {"attention_dp": 8, "storage": "mooncake"}),
    ("4x8xB200", {"split": (8, 24)}),
    ("2x8xH200", {"split": (0, 0), "pp": 2, "storage": "mooncake"}),
    ("4x8xH200", {"split": (16, 16), "all_to_all": "deepep"}),
]


def pinned_bytes(made: Plan, files: dict[str, str], engine: PlannedEngine) -> float:
    """Of each rank: `--hicache-size` in 1e9 bytes, twice the GPU's pool where decode offload has no size, its part of
    the engine's segment (`mooncake_store.py:446`), and what goes through memory to the store's disk."""
    name = engine.name if engine.nodes == 1 else f"{engine.name}-node0"
    process = json.loads(files[f"processes/{name}.json"])
    command = process["argv"]
    found = 0.0
    if "--hicache-size" in command:
        found += int(command[command.index("--hicache-size") + 1]) * 1e9
    elif "--hicache-ratio" in command:
        found += float(command[command.index("--hicache-ratio") + 1]) * made.memory(engine).pool
    elif "--disaggregation-decode-enable-offload-kvcache" in command:
        found += 2.0 * made.memory(engine).pool
    if engine.storage == "mooncake":
        segment = json.loads(files[mooncake_file(engine)])["global_segment_size"]
        found += segment // (engine.shape.tp // engine.shape.attention_dp * engine.shape.pp)
        found += int(process["environment"].get("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", 0))
    return found


@pytest.mark.parametrize(("gpus", "options"), CLUSTERS, ids=lambda each: each if isinstance(each, str) else "")
@pytest.mark.parametrize("model", MODELS)
def test_all_processes_of_a_node_pin_no_more_than_it_has(model: str, gpus: str, options: dict[str, Any]) -> None:
    try:
        made = make_plan(request(model, gpus, **options))
    except PlanError:
        return  # it does not fit there, and the error says so
    files = deployment_files(made, model, "")
    for node in range(made.cluster.nodes):
        here = [engine for engine in made.engines if engine.node <= node < engine.node + engine.nodes]
        ranks = [(engine, engine.shape.gpus // engine.nodes) for engine in here]
        pinned = sum(pinned_bytes(made, files, engine) * count for engine, count in ranks)
        assert pinned <= (made.cluster.gpu.host_memory_gib - RESERVE_GIB) * 2**30
    assert problems(made) == []


@pytest.mark.parametrize("options", [{"split": (0, 0), "pp": 2}, {"split": (8, 8)}, {"split": (0, 0)}], ids=str)
def test_each_rank_gives_its_part_of_the_store_whatever_the_stages_are(options: dict[str, Any]) -> None:
    made = make_plan(request("deepseek-r1", "2x8xH200", storage="mooncake", **options))
    engine = made.engines[0]
    segment = json.loads(deployment_files(made, "it", "")[mooncake_file(engine)])["global_segment_size"]
    ranks = engine.shape.attention_tp * engine.shape.pp  # among which SGLang divides it (`mooncake_store.py:446`)
    assert segment // ranks == rank_segment_bytes(made)


def test_ranks_of_a_node_fill_no_more_of_its_disk_than_the_site_gives_and_no_two_engines_share_a_folder() -> None:
    """SGLang makes a folder of each rank below the engine's (`mooncake_store.py:554`)."""
    for split in ((0, 0), (8, 8)):
        made = make_plan(request("gpt-oss-120b", "2x8xH200", tp=2, split=split, site=Site(store_disk_gb=8000)))
        files = deployment_files(made, "it", "")
        stored = [engine for engine in made.engines if engine.storage == "mooncake"]
        for node in range(2):
            here = [engine for engine in stored if engine.node == node]
            limits = [environment(made, engine)["MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES"] for engine in here]
            assert sum(int(limit) * 2 for limit in limits) <= 8000 * 10**9
        folders = [json.loads(files[mooncake_file(engine)])["ssd_offload_path"] for engine in stored]
        assert len(set(folders)) == len(stored) >= 4


@pytest.mark.parametrize(
    ("site", "storage", "problem"),
    [
        ({"store_disk_gb": 8000}, "none", "which no engine has"),
        ({"store_disk_gb": 7}, "mooncake", "at least 1 for each of a node's 8 GPUs"),
        ({"store_disk_gb": -1}, "mooncake", "at least 1 for each"),
        ({"store_disk_gb": 8000, "storage_dir": "cache"}, "mooncake", "an absolute path"),
        ({"store_disk_gb": 8000, "storage_dir": "/nvme/../cache"}, "mooncake", "without '..'"),
    ],
)
def test_a_disk_that_the_store_cannot_use(site: dict[str, Any], storage: Storage, problem: str) -> None:
    made = make_plan(request("deepseek-r1", "2x8xH200", split=(0, 0)))
    engines = tuple(replace(engine, storage=storage) for engine in made.engines)
    found = problems(replace(made, engines=engines, site=replace(made.site, **site)))
    assert [each for each in found if problem in each], found


def test_deepseek_v4_sizes_its_host_pool_by_a_ratio() -> None:
    """SGLang refuses `--hicache-size` for it (`hybrid_pool_assembler.py:659`)."""
    made = make_plan(request("deepseek-v4-flash", "8xH200"))
    engine = made.engines[0]
    command = argv(made, engine)
    assert engine.hicache is not None
    assert "--hicache-size" not in command
    ratio = float(command[command.index("--hicache-ratio") + 1])
    assert ratio * made.memory(engine).pool == pytest.approx(engine.hicache.size_gb * 1e9, rel=0.02)


OFFLOADS: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "latent": ("deepseek-r1", "2x8xH200", {"split": (8, 8)}, True),
    "heads": ("glm-4.6", "2x8xH200", {"split": (8, 8)}, True),
    "windows": ("gpt-oss-120b", "2x8xH200", {"split": (8, 8)}, False),
    "DeepSeek V4": ("deepseek-v4-flash", "2x8xH200", {"split": (8, 8)}, False),
    "stages on one side": ("deepseek-r1", "4x8xH200", {"split": (16, 16), "pp": 2}, False),
    "divided KV on one side": ("deepseek-r1", "2x8xH200", {"split": (8, 8), "dcp": 4}, False),
}


@pytest.mark.parametrize("name", OFFLOADS)
def test_decode_engines_store_answers_where_they_can_and_prefill_finds_them(name: str) -> None:
    """SGLang raises for other pools, and names what it stores by stage and division."""
    model, gpus, options, stores = OFFLOADS[name]
    made = make_plan(request(model, gpus, **options))
    decode = made.of("decode")[0]
    assert made.of("prefill")[0].storage == "mooncake"
    assert ("--disaggregation-decode-enable-offload-kvcache" in argv(made, decode)) == stores
    assert any("answers" in each.because for each in made.choices if each.topic == "storage") == stores
    always = tuple(replace(each, storage="mooncake") for each in made.engines)
    assert any("would not find" in each for each in problems(replace(made, engines=always))) != stores


def test_a_plan_whose_engines_pin_too_much_together_is_refused() -> None:
    made = make_plan(request("gpt-oss-120b", "8xH200", objective="throughput"))
    pools = [engine for engine in made.engines if engine.hicache is not None]
    assert len(pools) > 1
    share = (made.cluster.gpu.host_memory_gib - RESERVE_GIB) * 2**30 / 8 / 1e9
    too_much = tuple(
        replace(engine, hicache=replace(engine.hicache, size_gb=math.ceil(share * 1.1)))
        if engine.hicache is not None
        else engine
        for engine in made.engines
    )
    found = problems(replace(made, engines=too_much))
    assert any(each.startswith("node 0: host pools and parts of the shared store take") for each in found)


@pytest.mark.parametrize("model", ["kimi-k2.5", "deepseek-r1", "gpt-oss-120b", "qwen3-coder-480b"])
@pytest.mark.parametrize("folder", ["upper", "weights"])
def test_a_folder_has_the_flags_of_its_model_whatever_it_is_called(model: str, folder: str) -> None:
    known = known_model(model)
    found = replace(known, name=known.path.rpartition("/")[2] if folder == "upper" else "weights", path="/weights")
    names = names_of(found)
    assert model in names
    if len(names) == 1:
        assert draft_of(found) == draft_of(known)
    if model.startswith("kimi"):
        assert all(name.startswith("kimi") for name in names)
