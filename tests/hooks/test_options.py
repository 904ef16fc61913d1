import pytest

from sslengine.config.sections import section_problems
from sslengine.hooks.options import (
    EarlyStoppingOptions,
    EvaluateLossOptions,
    ProfilingOptions,
    RuntimeProfilingOptions,
)


def test_the_defaults_are_right() -> None:
    for options in (ProfilingOptions(), RuntimeProfilingOptions(), EarlyStoppingOptions()):
        assert list(section_problems(options)) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (ProfilingOptions(START_ITERATION=-1), "START_ITERATION: expected 0 or more, got -1."),
        (ProfilingOptions(WARMUP_ITERATIONS=-2), "WARMUP_ITERATIONS: expected 0 or more, got -2."),
        (ProfilingOptions(NUM_ITERATIONS=0), "NUM_ITERATIONS: expected 1 or more, got 0."),
        (
            RuntimeProfilingOptions(USE_PROFILER=True, PROFILE_CPU=False, PROFILE_GPU=False),
            "USE_PROFILER: there is nothing to profile; set PROFILE_CPU or PROFILE_GPU.",
        ),
    ],
)
def test_windows_that_cannot_be(options: ProfilingOptions, problem: str) -> None:
    assert list(section_problems(options)) == [problem]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (EarlyStoppingOptions(MONITOR="loss"), "MONITOR"),
        (EarlyStoppingOptions(MONITOR="valid.loss"), "MONITOR"),
        (EarlyStoppingOptions(MODE="less"), "MODE"),
        (EarlyStoppingOptions(PATIENCE=0), "PATIENCE"),
        (EarlyStoppingOptions(MIN_DELTA=-0.1), "MIN_DELTA"),
    ],
)
def test_early_stopping_that_cannot_be(options: EarlyStoppingOptions, key: str) -> None:
    (problem,) = section_problems(options)
    assert problem.startswith(f"{key}: expected")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (EvaluateLossOptions(SETS=["TRAIN", "VALID"]), "SETS.1"),
        (EvaluateLossOptions(EVERY=-1), "EVERY"),
    ],
)
def test_evaluations_that_cannot_be(options: EvaluateLossOptions, key: str) -> None:
    (problem,) = section_problems(options)
    assert problem.startswith(f"{key}: expected")
