"""Every command line of a plan is parsed and resolved by SGLang itself, in one process, without a GPU."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.machine import seconds
from warmroute_backend.launch.affinity import Affinity
from warmroute_backend.launch.fast_start import fast_start
from warmroute_backend.plan.argv import LAUNCH, argv, environment, mooncake_file
from warmroute_backend.plan.choose import make_plan
from warmroute_backend.plan.deployment import Plan, PlannedEngine, Site
from warmroute_backend.plan.files.proxy import mooncake_configs
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.memory import default_fraction
from warmroute_backend.plan.models import MODELS, known_model
from warmroute_backend.plan.request import PlanRequest
from warmroute_backend.plan.speed import overlaps
from warmroute_backend.plan.tiers import engine_segment_bytes
from warmroute_backend.sglang import installation

RESOLVE = Path(__file__).with_name("resolve.py")
TIMEOUT_S = 100.0
DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 7168,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "vocab_size": 163840,
    "intermediate_size": 18432,
    "max_position_embeddings": 262144,
    "torch_dtype": "bfloat16",
}
"""What SGLang reads of a draft model while it resolves: that it is one."""

DOES_NOT_FIT = {("kimi-k2-instruct", "8xH200"), ("deepseek-v4-pro", "8xH200")}


NEAR = Affinity(numa_nodes=(0, 0, 0, 0, 1, 1, 1, 1))


class Wanted(NamedTuple):
    """A plan: its model, GPUs, and what else is asked for."""

    model: str
    gpus: str
    options: dict[str, Any]


RECIPE: dict[str, Any] = {
    "all_to_all": "deepep", "split": (32, 72), "objective": "throughput", "context_tokens": 4500,
}  # fmt: skip
"""LMSYS's: prefill on 4 nodes, decode on 9 (sgl-project/sglang#6017)."""

WANTED = [
    *(
        Wanted(model, gpus, {"objective": objective})
        for model in MODELS
        for gpus in ("8xH200", "8xB200")
        for objective in ("latency", "throughput")
        if (model, gpus) not in DOES_NOT_FIT
    ),
    Wanted("gpt-oss-120b", "8xH100", {"split": (4, 4)}),
    Wanted("llama-4-scout", "2xH200", {"fraction": 0.88}),
    Wanted("deepseek-v3.2", "2x8xB200", {"split": (8, 8)}),
    Wanted("deepseek-r1", "2x8xH200", {"split": (8, 8), "attention_dp": 8}),
    Wanted("kimi-k2.5", "8xH200", {"dcp": 8}),
    Wanted("deepseek-r1", "2x8xH200", {"split": (8, 8), "dcp": 4, "storage": "mooncake"}),
    Wanted("kimi-k2.5", "2x8xH200", {"split": (8, 8), "speculation": False}),
    Wanted("glm-4.6", "2x8xH200", {"split": (8, 8), "storage": "file"}),
    Wanted("kimi-k2-instruct", "2x8xH200", {"objective": "throughput"}),
    Wanted("glm-4.6", "8xH200", {"lmcache": True}),
    Wanted("kimi-k2.5", "8xH200", {"kv_type": "fp8_e4m3", "storage": "mooncake"}),
    Wanted("deepseek-v3.2", "8xH200", {"kv_type": "fp8_e4m3", "hicache": False}),
    Wanted("qwen3-235b-2507", "8xB200", {"kv_type": "nvfp4", "split": (0, 0)}),
    Wanted("qwen3-32b", "4xGB200", {}),
    Wanted("glm-5.2", "8xB200", {}),
    Wanted("gpt-oss-20b", "1xL40S", {"context_tokens": 32_768}),
    Wanted("qwen3-8b", "1xA100", {}),
    Wanted("deepseek-v3.2", "8xB300", {"objective": "throughput"}),
    Wanted("deepseek-r1", "13x8xH100", {**RECIPE, "speculation": False}),
    Wanted("deepseek-r1", "13x8xH100", RECIPE),
    Wanted("deepseek-v3.2", "8x8xH200", {"all_to_all": "deepep", "split": (32, 32)}),
    Wanted("glm-5", "2x8xH200", {"all_to_all": "deepep", "split": (0, 0)}),
    Wanted("qwen3-235b-2507", "2x8xH200", {"all_to_all": "deepep", "split": (0, 0)}),
    Wanted("kimi-k2-instruct", "2x8xH200", {"pp": 2, "split": (0, 0)}),
    Wanted("deepseek-r1", "4x8xH200", {"pp": 2, "split": (16, 16), "tp": 8}),
    Wanted("gpt-oss-120b", "2xH200", {"pp": 2, "tp": 1, "context_tokens": 8192}),
]
"""MI300X is not among them: SGLang asks for ROCm's own libraries while it resolves."""


STORE_DISK_GB = 8000

DIVISION = (
    "tp_size", "attn_dp_size", "ep_size", "page_size", "pp_size", "moe_a2a_backend", "ep_num_redundant_experts",
    "enable_two_batch_overlap",
)  # fmt: skip


class Case(NamedTuple):
    """One process of a plan, or a change of its command line."""

    name: str
    plan: Plan
    engine: PlannedEngine
    argv: list[str]
    store: str
    """The file of the Mooncake store, where its engine has one."""


class Outcome(NamedTuple):
    """What SGLang made of it."""

    case: Case
    error: str | None
    resolved: dict[str, Any]


def without(command: list[str], flag: str) -> list[str]:
    at = command.index(flag)
    return command[:at] + command[at + 2 :]


def cases(folder: Path) -> Iterator[Case]:
    for number, (name, gpus, options) in enumerate(WANTED):
        model = folder / name
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(MODELS[name].config))
        disk_gb = STORE_DISK_GB if options.get("storage") == "mooncake" else 0
        site = Site(str(model), store_disk_gb=disk_gb)
        plan = make_plan(PlanRequest(known_model(name), parse_cluster(gpus), site=site, **options))
        for file, config in mooncake_configs(plan).items():
            (model / f"{number}-{file}").write_text(json.dumps(config))
        for engine in plan.engines:
            for rank in sorted({0, engine.nodes - 1}):
                command = argv(plan, engine, rank)[len(LAUNCH) :]
                if "--speculative-draft-model-path" in command:
                    command[command.index("--speculative-draft-model-path") + 1] = str(folder / "draft")
                store = str(model / f"{number}-{mooncake_file(engine)}")
                yield Case(f"{number} {name} {gpus} {options} {engine.name}/{rank}", plan, engine, command, store)


def run(given: list[Case]) -> list[Outcome]:
    """All of them, those for the same GPU one after the other."""
    given = sorted(given, key=lambda case: case.plan.cluster.gpu.name)
    asked = [
        {
            "argv": case.argv,
            "environment": environment(case.plan, case.engine) | {"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": case.store},
            "gpu": {
                "name": f"NVIDIA {case.plan.cluster.gpu.name}",
                "memory_mib": case.plan.cluster.gpu.memory_mib,
                "capability": [int(each) for each in case.plan.cluster.gpu.compute_capability.split(".")],
            },
        }
        for case in given
    ]
    done = subprocess.run(
        [str(installation().python), str(RESOLVE)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPYCACHEPREFIX": ""},  # its bytecode is beside its sources
        check=False,
        timeout=seconds(TIMEOUT_S),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)
    return [Outcome(case, each["error"], each["resolved"]) for case, each in zip(given, answers, strict=True)]


BROKEN: dict[str, tuple[list[str], str]] = {
    "an unknown flag": (["--cuda-graph-max-bs-of-old", "8"], "argparse"),
    "LMCache beside HiCache": (["--enable-lmcache"], "mutually exclusive"),
    "HiCache without a prefix cache": (["--disable-radix-cache"], "radix"),
    "a weight cache with drafts": (["--weight-cache-mode", "client"], "speculative"),
    "a window ratio above 1": (["--swa-full-tokens-ratio", "2"], "swa-full-tokens-ratio"),
    "a fake prefill": (["--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "fake"], "fake"),
}
"""Flags that are added to a sound command line, and a word of SGLang's error."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """Of all cases, of each first one without its fraction, and of the broken ones."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "draft").mkdir()
    (folder / "draft" / "config.json").write_text(json.dumps(DRAFT))
    sound = list(cases(folder))
    bare = [case._replace(name=f"bare {case.name}", argv=without(case.argv, "--mem-fraction-static")) for case in sound]
    first = next(case for case in sound if case.engine.hicache is not None)
    broken = [first._replace(name=f"broken {what}", argv=first.argv + flags) for what, (flags, _) in BROKEN.items()]
    fast = [
        case._replace(name=f"fast {case.name}", argv=[*case.argv, *flags, *NEAR.flags]) for case, flags in quick(sound)
    ]
    return run([*sound, *bare, *broken, *fast])


def quick(sound: list[Case]) -> Iterator[tuple[Case, tuple[str, ...]]]:
    """Cases that `warmroute launch --fast-restart` gives other flags; all get their GPUs' NUMA nodes."""
    for case in sound:
        found = fast_start(case.plan, case.engine, Path("/cache"))
        if found.flags:
            yield case, found.flags


def of(outcomes: list[Outcome], kind: str) -> list[Outcome]:
    """The sound ones, whose names begin with a number, or those of a kind."""
    found = [
        each for each in outcomes if kind == ("sound" if each.case.name[0].isdigit() else each.case.name.split()[0])
    ]
    assert found
    return found


@pytest.mark.timeout(110)
def test_sglang_takes_the_flags_of_a_fast_restart(outcomes: list[Outcome]) -> None:
    fast = of(outcomes, "fast")
    assert {"--weight-cache-mode", "--load-format"} <= {word for each in fast for word in each.case.argv}
    assert [f"{each.case.name}: {each.error}" for each in fast if each.error is not None] == []


@pytest.mark.timeout(110)
def test_every_command_line_is_parsed_and_resolved(outcomes: list[Outcome]) -> None:
    sound = of(outcomes, "sound")
    assert len(sound) > len(WANTED)
    assert [f"{each.case.name}: {each.error}" for each in sound if each.error is not None] == []


def test_the_stores_files_are_read_as_the_plan_means_them(outcomes: list[Outcome]) -> None:
    stored = [each for each in of(outcomes, "sound") if each.case.engine.storage == "mooncake"]
    on_disk = 0
    for case, _, resolved in stored:
        plan, store = case.plan, resolved["store"]
        assert store["global_segment_size"] == engine_segment_bytes(plan, case.engine)
        assert store["local_hostname"] == plan.site.host(case.engine.node)
        assert store["enable_ssd_offload"] == (plan.site.store_disk_gb > 0)
        on_disk += store["enable_ssd_offload"] and store["ssd_offload_path"].endswith(f"/mooncake/{case.engine.name}")
    assert len(stored) > on_disk >= 2


def test_what_is_resolved_is_what_the_plan_says(outcomes: list[Outcome]) -> None:
    for case, _, resolved in of(outcomes, "sound"):
        engine, shape = case.engine, case.engine.shape
        found = {name: resolved[name] for name in DIVISION}
        assert found == {
            "tp_size": shape.tp,
            "attn_dp_size": shape.attention_dp,
            "ep_size": engine.ep,
            "page_size": shape.page_tokens,
            "pp_size": shape.pp,
            "moe_a2a_backend": shape.all_to_all,
            "ep_num_redundant_experts": shape.redundant_experts,
            "enable_two_batch_overlap": overlaps(case.plan.model, shape),
        }, case.name
        assert resolved["mem_fraction_static"] == pytest.approx(engine.fraction, abs=0.0006), case.name
        assert resolved["chunked_prefill_size"] == shape.chunk_tokens // shape.attention_dp, case.name
        assert resolved["max_running_requests"] == shape.running_requests, case.name
        assert resolved["context_length"] == engine.context_tokens, case.name
        assert resolved["disable_radix_cache"] == (engine.role == "decode"), case.name
        kv_types = {"bf16", "bfloat16"} if shape.kv_type == "bf16" else {shape.kv_type}
        assert resolved["kv_cache_dtype"] in kv_types, case.name


def test_tiers_and_drafts_are_kept_as_they_were_asked_for(outcomes: list[Outcome]) -> None:
    for case, _, resolved in of(outcomes, "sound"):
        engine = case.engine
        assert resolved["enable_hierarchical_cache"] == (engine.hicache is not None), case.name
        if engine.hicache is not None:
            kept = (resolved["hicache_mem_layout"], resolved["hicache_io_backend"])
            assert kept == (engine.hicache.layout, engine.hicache.io_backend), case.name
        assert resolved["hicache_storage_backend"] == (None if engine.storage == "none" else engine.storage), case.name
        drafts = engine.speculation
        assert resolved["speculative_num_draft_tokens"] == (drafts.draft_tokens if drafts else None), case.name


def test_without_the_flag_sglang_chooses_the_fraction_that_the_formula_gives(outcomes: list[Outcome]) -> None:
    for case, error, resolved in of(outcomes, "bare"):
        assert error is None, case.name
        if case.engine.shape.all_to_all == "deepep":  # SGLang's rule leaves nothing where groups are many
            continue
        gpu, model = case.plan.cluster.gpu, case.plan.model
        expected = default_fraction(gpu, model, case.engine.shape)
        assert resolved["mem_fraction_static"] == pytest.approx(expected, abs=1e-6), case.name


@pytest.mark.parametrize("what", BROKEN)
def test_a_conflict_is_found_here_and_not_at_the_start_of_a_node(outcomes: list[Outcome], what: str) -> None:
    found = next(each for each in outcomes if each.case.name == f"broken {what}")
    assert found.error is not None
    assert BROKEN[what][1] in found.error
