"""What `scripts.gpu` writes of its measurements, without a GPU and without torch."""

import tomllib
from pathlib import Path

import pytest
from scripts.gpu import Bench, Measurement, figures, text_of

from warmroute_cli.main import main

FOUND = [
    Measurement("memory, reading", 4000.0, "GB/s"),
    Measurement("a model: up bf16, 8192 tokens", 700.0, "TFLOPS"),
    Measurement("a model: down bf16, 8192 tokens", 600.0, "TFLOPS"),
    Measurement("a model: up bf16, 32 tokens", 20.0, "TFLOPS"),
    Measurement("a model: up fp8, 8192 tokens", 1000.0, "TFLOPS"),
    Measurement("a model: attention of a prompt of 4096", 400.0, "TFLOPS"),
    Measurement("a model: attention of a prompt of 8192", 500.0, "TFLOPS"),
]


def test_figures_are_medians_of_prompts_and_the_best_attention() -> None:
    assert figures(FOUND) == {
        "bf16_tflops": 650.0, "fp8_tflops": 1000.0, "attention_tflops": 500.0, "read_gb_s": 4000.0,
    }  # fmt: skip


def test_the_planner_reads_the_file_and_compares_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(None, "cuda", 1.0, found=list(FOUND), left_out=['a "quoted" thing: no time is left'])
    path = tmp_path / "measured.toml"
    path.write_text(text_of("NVIDIA H200", "2.14.1", bench, toy=False))
    assert tomllib.loads(path.read_text())["measured"]["left_out"] == bench.left_out
    assert main(["plan", "--list", "--measured", str(path)]) == 0
    assert "H200, products, bf16: measured 66% of the peak" in capsys.readouterr().out


def test_what_is_not_in_this_torch_or_not_in_the_time_is_left_out_and_named() -> None:
    def lacks() -> None:
        raise NotImplementedError("aten::_scaled_mm is not there\nmore")

    bench = Bench(None, "cpu", 1e9)
    bench.measure("fp8", lambda: lacks, 1.0, "TFLOPS")
    bench.limit_s = 0.0
    bench.measure("late", lambda: lambda: None, 1.0, "TFLOPS")
    assert bench.left_out == ["fp8: aten::_scaled_mm is not there", "late: no time is left"]
    assert bench.found == []
