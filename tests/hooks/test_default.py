from __future__ import annotations

from pathlib import Path
from typing import Any

from sslengine.hooks.default import default_hooks
from tests.config.recipes import resolved
from tests.engines.runs import CutPower


def _names(**changes: Any) -> list[str]:
    hooks = default_hooks(resolved(**changes).config, Path())
    return [type(hook).__name__ for hook in hooks]


def test_what_can_be_asked_for_in_its_order() -> None:
    names = _names(
        HOOKS={
            "PERF_STATS": {"MONITOR_PERF_STATS": True},
            "MODEL_COMPLEXITY": {"COMPUTE_COMPLEXITY": True},
            "TENSORBOARD_SETUP": {"USE_TENSORBOARD": True, "LOG_PARAMS": True},
            "EXTRA": [{"name": "test_power_cut", "after": 1}],
        },
        MODEL__TEMP_FROZEN_PARAMS_ITER_MAP=[["module.heads.0.clf.0.weight", 2]],
        MODEL__GRAD_CLIP__USE_GRAD_CLIP=True,
        PROFILING__RUNTIME_PROFILING__USE_PROFILER=True,
    )
    assert names == [
        "LogPerfStats",
        "LogComplexity",
        "FreezeParameters",
        "LogGradientNorm",
        "ClipGradients",
        "TensorBoardHistograms",
        "LogCollapse",
        "ProfileSteps",
        "CutPower",
    ]


def test_hooks_of_ones_own_by_name_or_with_arguments() -> None:
    config = resolved(HOOKS__EXTRA=["tests.hooks.test_default:Plain"]).config
    assert any(isinstance(hook, Plain) for hook in default_hooks(config, Path()))
    config = resolved(HOOKS__EXTRA=[{"name": "test_power_cut", "after": 7}]).config
    (cut,) = [hook for hook in default_hooks(config, Path()) if isinstance(hook, CutPower)]
    assert cut.after == 7


class Plain:
    name = "plain"

    def on_end(self, task: Any) -> None: ...
