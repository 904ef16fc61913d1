"""Both ways compute the same loss; how much memory they take is for the tool to say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.perf_measurement import bench_similarity


@pytest.mark.parametrize("ranks", [2, 8])
def test_both_ways_have_one_loss(ranks: int) -> None:
    whole, parts = (bench_similarity.measure(way, ranks)["loss"] for way in ("whole", "parts"))
    assert abs(whole - parts) < 1e-4


@pytest.mark.slow
def test_the_table() -> None:
    command = [sys.executable, bench_similarity.__file__, "--ranks", "2", "8"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split()[:2] for line in lines[1:]]
    assert rows == [[ranks, way] for ranks in ("2", "8") for way in ("whole", "parts")]
