"""Parts of the benchmark for a GPU that a CPU can try; test_gpu_report.py runs all of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tools.perf_measurement import bench_gpu


class Contestant:
    device = torch.device("cpu")

    def __init__(self, precision: str, fails_at: int = -1) -> None:
        self.precision, self.left = precision, fails_at

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise torch.OutOfMemoryError("CUDA out of memory\nand more")
        torch.ones(2, 2) @ torch.ones(2, 2)


def _no_contestant() -> Contestant:
    raise ImportError("No module named 'lightly'")


def test_one_that_fails_is_a_row_and_the_others_go_on() -> None:
    given = argparse.Namespace(rounds=2, turn=1, batch=4, tflops=1e-9)
    makers = {
        "half": lambda: Contestant("bf16"),
        "full": lambda: Contestant("fp32"),
        "absent": _no_contestant,
        "early": lambda: Contestant("bf16", 1),
        "late": lambda: Contestant("bf16", bench_gpu.WARM_UP + 3),
    }
    half, full, absent, early, late = bench_gpu.race(makers, given)
    assert half["tflop"] == full["tflop"] == 16e-12
    assert half["mfu"] > 0
    assert full["mfu"] is None  # the peak is that of bfloat16
    assert absent["error"] == "ImportError: No module named 'lightly'"
    assert early["error"] == late["error"] == "OutOfMemoryError: CUDA out of memory"
    assert "ms" not in late


@pytest.mark.parametrize(
    ("card", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L4", 121.0),
        ("Tesla V100-SXM2-32GB", None),
    ],
)
def test_the_peak_is_that_of_the_card(card: str, tflops: float | None) -> None:
    assert bench_gpu.peak(card) == tflops


@pytest.fixture
def kernels() -> Iterator[None]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    yield
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


@pytest.mark.parametrize(("precision", "tf32"), [("fp32", False), ("tf32", True), ("bf16", True)])
def test_a_step_has_the_kernels_of_its_row(precision: str, tf32: bool, kernels: None) -> None:
    seen: list[Any] = []
    ours = bench_gpu.Ours.__new__(bench_gpu.Ours)
    ours.precision, ours.tries = precision, False
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    ours.task = SimpleNamespace(
        steps_left=lambda: 1,
        step=lambda: seen.extend([matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark]),
    )
    ours.step()
    assert seen == [tf32, tf32, False]


def test_a_recipe_as_it_is_written_and_no_other_part() -> None:
    words = ["--device=cpu", "--tiny", "--case", "--recipes", "quickstart/simsiam"]
    results = bench_gpu.main(words)
    assert list(results) == ["recipes"]
    (row,) = results["recipes"]
    assert (row["name"], row["batch"]) == ("quickstart/simsiam", 2)
    assert row["ms"] > 0
    assert "used_gb" not in row  # of a GPU


def test_the_parts_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("in_memory", "from_files", "stages"):
        monkeypatch.setattr(bench_gpu, part, lambda *_, part=part: [{"name": part}])
    asked = ["--device=cpu", "--tiny", "--case", "simclr", "mae", "--parts", "memory", "stages"]
    results = bench_gpu.main(asked)
    assert {title: len(rows) for title, rows in results.items()} == {
        "simclr": 1, "mae": 1, "stages": 2,
    }  # fmt: skip
