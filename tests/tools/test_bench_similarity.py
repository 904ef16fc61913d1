"""Both ways compute the same loss; how much memory they take is for the tool to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/perf_measurement/bench_similarity.py"


def test_both_ways_have_one_loss() -> None:
    command = [sys.executable, str(TOOL), "--ranks", "2", "8"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split() for line in lines[1:]]
    assert [row[:2] for row in rows] == [[n, way] for n in ("2", "8") for way in ("whole", "parts")]
    for whole, parts in (rows[:2], rows[2:]):
        assert abs(float(whole[4]) - float(parts[4])) < 1e-4
