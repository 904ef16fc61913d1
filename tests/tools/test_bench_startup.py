"""The benchmark of start-up measures the commands that it names."""

from __future__ import annotations

from sslengine.config.resolve import resolve
from tools.perf_measurement import bench_startup


def test_the_runs_resolve() -> None:
    for name in ("two steps", "two steps, two ranks"):
        config = resolve(bench_startup.COMMANDS[name]).config
        assert config.OPTIMIZER.num_iterations == 2
        assert (2 if "ranks" in name else 1) == config.DISTRIBUTED.NUM_PROC_PER_NODE


def test_a_command_is_measured() -> None:
    cpu, wall = bench_startup.measure(bench_startup.HERE, bench_startup.COMMANDS["unknown key"])
    assert cpu > 0
    assert wall > 0
