"""Each way counts all images; how fast is for the tool to say."""

from __future__ import annotations

import re

import pytest

from tools.perf_measurement import bench_extraction


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
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
