from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sslengine.engines.train import train
from sslengine.errors import ConfigError
from sslengine.monitor.history import read
from tests.engine.test_task import SUPERVISED, WITH_TEST
from tests.engines.runs import CutPower, PowerCut, make_run

assert CutPower
BOTH = {"HOOKS__WRITERS": ["json", "csv"], "LOG_FREQUENCY": 1}


def test_it_has_what_the_lines_have_also_of_a_run_that_was_killed(tmp_path: Path) -> None:
    changes = {**SUPERVISED, **WITH_TEST, **BOTH}
    with pytest.raises(PowerCut):
        train(make_run(tmp_path, **changes, HOOKS__EXTRA=[{"name": "test_power_cut", "after": 6}]))
    train(make_run(tmp_path, **changes))
    rows = read(tmp_path, kind=None)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [*written[0]][:5] == ["kind", "split", "iteration", "epoch", "time"]
    told = [{name: value for name, value in row.items() if value} for row in written]
    assert told == [{name: str(value) for name, value in row.items()} for row in rows]
    assert len(rows) == 8 + 4


def test_it_needs_the_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config.HOOKS.WRITERS: csv .* add json"):
        train(make_run(tmp_path, HOOKS__WRITERS=["csv"]))
