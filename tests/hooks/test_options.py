import pytest

from sslengine.hooks.options import (
    EmaModelOptions,
    HooksOptions,
    MemoryProfilingOptions,
    MemorySummaryOptions,
    MonitoringOptions,
    ProfilingOptions,
    RuntimeProfilingOptions,
)


def test_the_defaults_are_right() -> None:
    for options in (HooksOptions(), MonitoringOptions(), ProfilingOptions()):
        assert list(options.check()) == []


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (HooksOptions(EMA_MODEL=EmaModelOptions(SAVE_EMA_MODEL=True)), "EMA_MODEL.SAVE_EMA_MODEL"),
        (
            HooksOptions(EMA_MODEL=EmaModelOptions(ENABLE_EMA_METERS=True)),
            "EMA_MODEL.ENABLE_EMA_METERS",
        ),
        (
            HooksOptions(MEMORY_SUMMARY=MemorySummaryOptions(DUMP_MEMORY_ON_EXCEPTION=True)),
            "MEMORY_SUMMARY.DUMP_MEMORY_ON_EXCEPTION",
        ),
        (MonitoringOptions(MONITOR_ACTIVATION_STATISTICS=5), "MONITOR_ACTIVATION_STATISTICS"),
        (
            ProfilingOptions(RUNTIME_PROFILING=RuntimeProfilingOptions(USE_PROFILER=True)),
            "RUNTIME_PROFILING.USE_PROFILER",
        ),
        (
            ProfilingOptions(MEMORY_PROFILING=MemoryProfilingOptions(TRACK_BY_LAYER_MEMORY=True)),
            "MEMORY_PROFILING.TRACK_BY_LAYER_MEMORY",
        ),
    ],
)
def test_what_is_not_there_is_refused(options: object, key: str) -> None:
    (problem,) = options.check()
    assert problem.startswith(f"{key}: not available yet")
