"""Benchmarks run with their smallest arguments, and compare ways that compute the same."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sslengine import catalog  # noqa: F401 - declares the names of the configs
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import SplitOptions
from tests.tail import slow_but
from tools.perf_measurement import (
    bench_data,
    bench_end_to_end,
    bench_engine,
    bench_evaluation,
)
from tools.perf_measurement.bench_paths import make_paths

SOURCES = ("disk_folder", "disk_filelist")
SMALL = "--train 900 --samples 900 --queries 50 --width 8 --classes 5 --penalties 9"


@pytest.mark.slow
def test_the_table_of_evaluation() -> None:
    command = [sys.executable, bench_evaluation.__file__, *SMALL.split()]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in ("knn / product: ", "regressions / five: ", "scikit-learn-five", "faiss"):
        assert name in found


def test_the_times_of_augmentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "times.json"
    options = ["--case", "simclr", "--only", "engine, pil", "--images", "4", "--rounds", "2"]
    results = bench_data.main([*options, "--no-wall", "--json", str(into)])
    assert json.loads(into.read_text()) == results
    assert results["simclr"]["ratio"]["list"] == 1.0
    assert {len(times) for times in results["simclr"]["cpu"].values()} == {2}
    assert "engine, pil" in capsys.readouterr().out


@pytest.mark.parametrize("name", slow_but(["mlp"], ["mlp", "resnet18"]))
def test_the_engine_makes_the_steps_of_the_plain_loop(name: str) -> None:
    case = bench_engine.CASES[name]
    # In float64: the loop and the engine may round their sums in another order.
    batches = [torch.randn(8, *case.shape, dtype=torch.float64) for _ in range(3)]
    task = bench_engine.engine_task(case, iter(batches))
    task.base_model.double()
    plain = case.plain().double()
    with torch.no_grad():
        for mine, theirs in zip(plain.parameters(), task.base_model.parameters(), strict=True):
            mine.copy_(theirs)
    expected = bench_engine.plain_train.train_steps(
        plain, bench_engine.make_optimizer(plain), batches, bench_engine.TEMPERATURE,
        lambda step: bench_engine.RATE,
    )  # fmt: skip
    for _ in batches:
        task.step()
    task.on_end()
    losses = [entry / batch for entry, batch in zip(task.losses, [case.images] * 3, strict=True)]
    assert losses == pytest.approx([loss.item() for loss in expected], rel=1e-5)
    for mine, theirs in zip(plain.parameters(), task.base_model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_race_times_every_contestant(capsys: pytest.CaptureFixture[str]) -> None:
    threads = str(torch.get_num_threads())
    arguments = ["--case", "mlp", "--only", "sslengine", "--rounds", "2", "--scale", "0.03"]
    arguments += ["--clock", "cpu"]
    results = bench_engine.main([*arguments, "--threads", threads])
    assert {name: len(rounds) for name, rounds in results["mlp"].items()} == {
        "plain": 2,
        "sslengine": 2,
    }
    assert all(seconds > 0 for rounds in results["mlp"].values() for seconds in rounds)
    assert "ms/step" in capsys.readouterr().out


@pytest.mark.slow
def test_the_engine_runs_from_files_to_steps() -> None:
    words = ["--only", "sslengine", "--images", "256", "--epochs", "2", "--rounds", "1"]
    (rate,) = bench_end_to_end.main([*words, "--workers", "0"])["sslengine"]
    assert rate > 0


def opened(source: str, path: Path, **keys: object) -> SSLDataset:
    options = SplitOptions(DATA_SOURCES=[source], DATA_PATHS=[str(path)], **keys)  # type: ignore[arg-type]
    return SSLDataset(options, "TRAIN", 0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_goes_to_a_worker_does_not_grow_with_a_million_files(tmp_path: Path) -> None:
    folder, paths = make_paths(tmp_path, 1_000_000)
    np.save(tmp_path / "labels.npy", np.arange(1_000_000) % 7)
    labels = {"LABEL_SOURCES": ["disk_filelist"], "LABEL_PATHS": [str(tmp_path / "labels.npy")]}
    for keys in ({"LABEL_TYPE": "sample_index"}, labels, {**labels, "DATA_LIMIT": 900_000}):
        for source, path in zip(SOURCES, (folder, paths), strict=True):
            data = opened(source, path, **keys)
            assert len(pickle.dumps(data)) < 60_000  # most of it the names of 1000 classes
            other = pickle.loads(pickle.dumps(data))
            assert other.name(899_999) == data.name(899_999)
            assert other.labels[0][-1] == data.labels[0][-1]
