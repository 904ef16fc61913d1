"""All ways find the same; how much time they take is for the tool to say."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tools.perf_measurement import bench_evaluation

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
def test_the_table() -> None:
    command = [sys.executable, bench_evaluation.__file__, *SMALL]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in ("knn / product: ", "regressions / five: ", "scikit-learn-five"):
        assert name in found
