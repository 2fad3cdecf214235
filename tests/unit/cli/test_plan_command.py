"""`warmroute plan`: what a user types, and what comes of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from warmroute_backend.plan.choose import make_plan
from warmroute_backend.plan.deployment import Traffic
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.models import MODELS, known_model
from warmroute_backend.plan.request import AGGREGATED, PlanRequest
from warmroute_cli.main import main
from warmroute_cli.plan.inputs import average_of, average_trace
from warmroute_cli.plan.sizing import Sizing, simulate

pytestmark = pytest.mark.full

TRAFFIC = Traffic(20_000, 400, 1.0, 0.9)


def run(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["plan", *options]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["plan", *options]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("warmroute plan: ")
    assert error.count("\n") == 1
    return error


def test_a_page_has_what_an_operator_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    traffic = ("--input", "20000", "--output", "400", "--requests-per-s", "0.5")
    page = run(capsys, "--model", "kimi-k2.5", "--gpus", "8xH200", *traffic)
    for words in ("Engines", "Memory", "Sessions that stay warm", "Choices", "TTFT s", "bottleneck:", "not played"):
        assert words in page
    assert "prefill + 1 decode" not in page  # eight GPUs hold one engine of this model


def test_json_has_the_plan_its_memory_and_its_sizing(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", "gpt-oss-120b", "--gpus", "8xH100", "--pd", "4+4", "--input", "20000", "--output", "500")
    found = json.loads(run(capsys, *options, "--json"))
    assert [engine["shape"]["role"] for engine in found["engines"]] == ["prefill", "decode"]
    assert found["engines"][0]["memory"]["tokens"] > found["engines"][0]["context_tokens"]
    assert found["sizing"][0]["division"].startswith("1 prefill")
    assert found["sizing"][0]["bottleneck"]
    assert [process["name"] for process in found["processes"]] == ["prefill-0", "decode-0"]
    assert all("--disaggregation-mode" in process["argv"] for process in found["processes"])


def test_the_files_of_a_plan_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--model", "deepseek-v3.2", "--gpus", "2x8xB200", "--pd", "8+8", "--out", str(tmp_path))
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert {"plan.toml", "plan.txt", "proxy.toml", "processes/prefill-0.json", "mooncake-prefill-0.json"} <= names


def test_a_checkpoints_folder_is_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deepseek-r1"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODELS["deepseek-r1"].config))
    index = {"metadata": {"total_size": MODELS["deepseek-r1"].checkpoint_bytes}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    by_folder = json.loads(run(capsys, "--model", str(folder), "--gpus", "8xH200", "--json"))
    by_name = json.loads(run(capsys, "--model", "deepseek-r1", "--gpus", "8xH200", "--json"))
    assert by_folder["engines"] == by_name["engines"]
    out = tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    run(capsys, "--model", folder.name, "--gpus", "8xH200", "--out", str(out))
    monkeypatch.chdir("/")
    assert str(folder) in json.loads((out / "processes" / "aggregated-0.json").read_text())["argv"]
    assert main(["plan", "--check", str(out / "plan.toml")]) == 0


def test_a_list_of_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "--list").split()
    assert {*MODELS, "H200"} <= set(found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--model kimi-k2.5 --gpus 8xH200"),
        (("--model", "kimi-k2.5", "--gpus", "8xH100", "--input", "60000", "--output", "400"), "--gpus 2x8xH100"),
        (("--model", "kimi-k2", "--gpus", "8xH200"), "kimi-k2.5"),
        (("--model", "kimi-k2.5", "--gpus", "8xH300"), "H200"),
        (("--model", "/does/not/exist", "--gpus", "8xH200"), "known are"),
        (("--model", "kimi-k2.5", "--gpus", "8xH200", "--input", "60000"), "--output"),
        (("--model", "kimi-k2.5", "--gpus", "8xH200", "--context", "500000"), "262,144"),
        (("--model", "glm-4.6", "--gpus", "8xH200", "--lmcache", "--speculation", "on"), "kv_cache_hook.py"),
        (("--model", "kimi-k2.5", "--gpus", "8xH200", "--trace", "/does/not/exist"), "No such file"),
    ],
)
def test_a_refusal_is_one_line_with_what_works(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert words in refused(capsys, *options)


def test_a_trace_is_sized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"timestamp": 1000 * at, "input_length": 4096, "output_length": 64, "hash_ids": [1, 2, 3, 4, 5, 6, 7, 100 + at]}
        for at in range(200)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)))
    found = json.loads(run(capsys, "--model", "gpt-oss-120b", "--gpus", "8xH100", "--trace", str(trace), "--json"))
    assert found["traffic"]["input_tokens"] == 4096
    assert found["traffic"]["cached_share"] == pytest.approx(7 / 8, abs=0.02)
    assert len({each["division"] for each in found["sizing"]}) == len(found["sizing"]) > 2


def test_a_trace_that_floods_the_gpus_is_cut_and_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = range(3000 * 16)
    lines = [
        {"timestamp": number * 10, "input_length": 8192, "output_length": 50, "hash_ids": [*ids[number * 16 :][:16]]}
        for number in range(3000)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)))
    options = ["--model", "gpt-oss-120b", "--gpus", "1xH100", "--trace", str(trace)]
    options += ["--kv-dtype", "bf16", "--mem-fraction", "0.8", "--chunk", "8192", "--speculation", "off"]
    found = json.loads(run(capsys, *options, "--json"))["sizing"][0]
    assert found["saturated"]
    assert 1000 < found["played"] * 3000 < 2000
    assert f"no, cut at {found['played']:.0%}" in run(capsys, *options)


def test_average_traffic_has_the_averages_that_were_given() -> None:
    trace = average_trace(TRAFFIC)
    found = average_of(trace)
    assert (found.input_tokens, found.output_tokens) == (TRAFFIC.input_tokens, TRAFFIC.output_tokens)
    assert found.cached_share == pytest.approx(TRAFFIC.cached_share, abs=0.1)
    assert [each.blocks for each in trace.requests] == [each.blocks for each in average_trace(TRAFFIC).requests]


def test_more_requests_use_more() -> None:
    few, many = (_aggregated(Traffic(20_000, 400, rate, 0.9)) for rate in (0.5, 4.0))
    assert few.prefill_utilisation < many.prefill_utilisation
    assert few.decode_utilisation < many.decode_utilisation
    assert few.ttft_p90_s <= many.ttft_p90_s
    assert not few.saturated


def test_a_shorter_cached_share_costs_prefill() -> None:
    warm, cold = (_aggregated(Traffic(20_000, 400, 2.0, share)) for share in (0.9, 0.1))
    assert warm.hit > cold.hit
    assert warm.ttft_p90_s < cold.ttft_p90_s
    assert warm.prefill_utilisation < cold.prefill_utilisation


def _aggregated(traffic: Traffic) -> Sizing:
    request = replace(_request(traffic), split=AGGREGATED)
    return simulate(make_plan(request), request, average_trace(traffic))


def _request(traffic: Traffic) -> PlanRequest:
    return PlanRequest(known_model("gpt-oss-120b"), parse_cluster("8xH100"), traffic=traffic)


# A hybrid family: its cache has no formula here. The numbers are those that flags are checked by.
HYBRID = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {
        "num_hidden_layers": 60, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1024,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256, "num_experts": 512,
        "num_experts_per_tok": 10, "vocab_size": 248320, "max_position_embeddings": 262144,
    },
}  # fmt: skip


@pytest.fixture
def hybrid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A plan file for a model of a hybrid family: that of another one with its name in the place of the other's."""
    folder = tmp_path / "hybrid"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(HYBRID))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 807 * 10**9}}))
    run(capsys, "--model", "qwen3-235b", "--gpus", "8xH200", "--out", str(tmp_path / "made"))
    text = (tmp_path / "made" / "plan.toml").read_text()
    file = tmp_path / "plan.toml"
    file.write_text(text.replace('model = "qwen3-235b"', f'model = "{folder}"'))
    assert str(folder) in file.read_text()
    return file


def test_a_family_without_a_formula_has_its_flags_checked(capsys: pytest.CaptureFixture[str], hybrid: Path) -> None:
    said = run(capsys, "--check", str(hybrid))
    assert "hybrid (linear attention)" in said
    assert said.endswith("Only flags were checked.\n")
    hybrid.write_text(hybrid.read_text().replace("tp = 8", "tp = 3", 1))
    assert main(["plan", "--check", str(hybrid)]) == 1
    assert "tp 3 does not divide 32 attention heads" in capsys.readouterr().err


def test_a_family_without_a_formula_gets_files_that_name_no_capacity(
    capsys: pytest.CaptureFixture[str], hybrid: Path, tmp_path: Path
) -> None:
    run(capsys, "--check", str(hybrid), "--out", str(tmp_path / "out"))
    page = (tmp_path / "out" / "plan.txt").read_text()
    assert "its capacity is not computed" in page
    assert "Memory" not in page
    (process,) = (tmp_path / "out" / "processes").iterdir()
    assert "--mem-fraction-static" in process.read_text()
