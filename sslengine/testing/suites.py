"""The suites, by the kind of component."""

from __future__ import annotations

from typing import Any

from sslengine.testing import component_suites, data_suites, output_suites

_ALL: tuple[type[Any], ...] = (
    component_suites.MethodSuite,
    component_suites.ModelSuite,
    component_suites.TrainStepSuite,
    component_suites.TrunkSuite,
    component_suites.HeadSuite,
    component_suites.OptimizerSuite,
    component_suites.ScheduleSuite,
    component_suites.ParamGroupsSuite,
    component_suites.HookSuite,
    component_suites.MeterSuite,
    data_suites.TransformSuite,
    data_suites.CollatorSuite,
    data_suites.SourceSuite,
    output_suites.WriterSuite,
    output_suites.EvaluatorSuite,
)
SUITES: dict[str, type[Any]] = {each.kind: each for each in _ALL}
