"""The benchmark of gradcache_train_step measures what its rows say."""

from __future__ import annotations

import pytest

from sslengine.config.resolve import resolve_dict
from tools.perf_measurement import bench_gradcache


@pytest.mark.parametrize("row", bench_gradcache.ROWS, ids=str)
def test_each_row_is_a_config_that_resolves(row: tuple[str, int, int]) -> None:
    step, batch, chunk = row
    trainer = resolve_dict(bench_gradcache.config(step, batch, chunk, "runs/x")).config.TRAINER
    assert step == trainer.TRAIN_STEP_NAME
    if chunk:
        assert chunk == trainer.gradcache_train_step.CHUNK_SIZE


def test_a_row_is_measured() -> None:
    found = bench_gradcache.measure("gradcache_train_step", 4, 2)
    assert found["ms"] > 0
    assert found["mib"] >= 0
