"""Benchmarks compare ways that compute the same; which is faster is for the tools to say."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import timm
import torch

from sslengine.config.resolve import resolve, resolve_dict
from tools.perf_measurement import (
    bench_evaluation,
    bench_extraction,
    bench_gradcache,
    bench_packed,
    bench_similarity,
    bench_startup,
)

SMALL = [
    "--train",
    "900",
    "--samples",
    "900",
    "--queries",
    "50",
    "--width",
    "8",
    "--classes",
    "5",
    "--penalties",
    "9",
]


def rows(ways: list[str]) -> list[float]:
    given = argparse.Namespace(
        train=900, samples=900, queries=50, width=8, classes=5, penalties=9, threads=1, device="cpu"
    )
    return [bench_evaluation.measure(way, given)["result"] for way in ways]


def test_neighbours_are_the_same() -> None:
    found = rows(["knn", "scikit-learn", *(["faiss"] if find_spec("faiss") else [])])
    assert found == pytest.approx([found[0]] * len(found))
    assert 20 < found[0] < 100


def test_regressions_are_the_same() -> None:
    five, scikit = rows(["five", "scikit-learn-five"])
    assert five == pytest.approx(scikit, abs=0.1)


@pytest.mark.slow
def test_the_table_of_evaluation() -> None:
    command = [sys.executable, bench_evaluation.__file__, *SMALL]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in ("knn / product: ", "regressions / five: ", "scikit-learn-five"):
        assert name in found


def test_the_table_of_extraction(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--images=6", "--batch-size=3", "--workers=0", "--rounds=2", "--network=resnet10t"]
    bench_extraction.main(small)
    shown = capsys.readouterr().out
    rates = re.findall(r"^(loader|network|extraction) +([0-9.]+) images/s", shown, re.M)
    assert [name for name, _ in rates] == ["loader", "network", "extraction"]
    assert all(float(rate) > 0 for _, rate in rates)
    assert "extraction / the slower of both: " in shown


def test_rates_are_compared_by_their_medians() -> None:
    assert bench_extraction.table(
        {"loader": [10.0, 30.0, 20.0], "network": [5.0], "extraction": [4.0]}
    ).endswith("slower of both: 0.80\nextraction / one after the other: 1.00")


@pytest.mark.parametrize("row", bench_gradcache.ROWS, ids=str)
def test_each_row_is_a_config_that_resolves(row: tuple[str, int, int]) -> None:
    step, batch, chunk = row
    trainer = resolve_dict(bench_gradcache.config(step, batch, chunk, "runs/x")).config.TRAINER
    assert step == trainer.TRAIN_STEP_NAME
    if chunk:
        assert chunk == trainer.gradcache_train_step.CHUNK_SIZE


def test_a_row_of_gradcache_is_measured() -> None:
    found = bench_gradcache.measure("gradcache_train_step", 4, 2)
    assert found["ms"] > 0
    assert found["mib"] >= 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("way", ["packed", "nested"])
def test_packed_tokens_give_the_same(way: str) -> None:
    torch.manual_seed(0)
    trunk = timm.create_model("test_vit", num_classes=0, dynamic_img_size=True).double()
    trunk.global_pool = "token"
    crops = [torch.randn(2, 3, 64, 64).double(), torch.randn(4, 3, 32, 32).double()]
    found = []
    for each in ("apart", way):
        trunk.zero_grad()
        features = torch.cat(bench_packed.WAYS[each](trunk, crops))
        features.square().sum().backward()
        found.append([features, *(p.grad for p in trunk.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_the_table_of_packed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_packed, "CROPS", ((1, 64), (2, 32)))
    bench_packed.main(["--model", "test_vit", "--images", "2", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["apart", "packed"]
    assert lines[1].split()[-1] == "1.00"


@pytest.mark.parametrize("ranks", [2, 8])
def test_both_ways_have_one_loss(ranks: int) -> None:
    whole, parts = (bench_similarity.measure(way, ranks)["loss"] for way in ("whole", "parts"))
    assert abs(whole - parts) < 1e-4


@pytest.mark.slow
def test_the_table_of_similarity() -> None:
    command = [sys.executable, bench_similarity.__file__, "--ranks", "2", "8"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split()[:2] for line in lines[1:]]
    assert rows == [[ranks, way] for ranks in ("2", "8") for way in ("whole", "parts")]


def test_the_runs_of_startup_resolve() -> None:
    for name in ("two steps", "two steps, two ranks"):
        config = resolve(bench_startup.COMMANDS[name]).config
        assert config.OPTIMIZER.num_iterations == 2
        assert (2 if "ranks" in name else 1) == config.DISTRIBUTED.NUM_PROC_PER_NODE


def test_a_command_is_measured() -> None:
    cpu, wall = bench_startup.measure(bench_startup.HERE, bench_startup.COMMANDS["unknown key"])
    assert cpu > 0
    assert wall > 0
