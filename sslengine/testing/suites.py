"""The suites, by the kind of component."""

from __future__ import annotations

from typing import Any

from sslengine.testing import of_data, of_judges, of_parts

_ALL: tuple[type[Any], ...] = (
    of_parts.MethodSuite,
    of_parts.ModelSuite,
    of_parts.TrainStepSuite,
    of_parts.TrunkSuite,
    of_parts.HeadSuite,
    of_parts.OptimizerSuite,
    of_parts.ScheduleSuite,
    of_parts.ParamGroupsSuite,
    of_parts.HookSuite,
    of_parts.MeterSuite,
    of_data.TransformSuite,
    of_data.CollatorSuite,
    of_data.SourceSuite,
    of_judges.WriterSuite,
    of_judges.EvaluatorSuite,
)
SUITES: dict[str, type[Any]] = {each.kind: each for each in _ALL}
