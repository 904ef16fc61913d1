from __future__ import annotations

import re

import pytest
from rich.console import Console

from sslengine import catalog  # noqa: F401 - declares the names of the configs
from sslengine.config.facts import world_size
from sslengine.config.resolve import resolve
from tools.compare_ranks import BATCH, METHODS, SHAPES, main, overrides, table


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_the_same_global_batch(method: str, shape: str) -> None:
    config = resolve([f"config=quickstart/{method}", *overrides(shape, steps=3)]).config
    each = config.DATA.TRAIN.BATCHSIZE_PER_REPLICA * config.OPTIMIZER.accumulate
    assert each * world_size(config) == BATCH
    assert config.OPTIMIZER.num_iterations == 3 * config.OPTIMIZER.accumulate


def test_the_table_tells_how_far_columns_are_apart() -> None:
    console = Console(record=True, width=100)
    console.print(table("x", {"a": [2.0, 4.0], "b": [2.0, 5.0], "c": [1.0, 4.0]}))
    *_, apart = console.export_text().strip().splitlines()
    assert apart.split() == ["apart", "0.0e+00", "2.5e-01", "5.0e-01"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_ranks_and_shards_compute_what_one_rank_does(
    method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([method, "--steps", "3"]) == 0
    (line,) = re.findall(r"^apart.*$", capfd.readouterr().out, re.MULTILINE)
    alone, ddp, shards, _ = map(float, line.split()[1:])
    assert alone == 0.0
    assert ddp < 1e-3
    assert shards < 1e-3
