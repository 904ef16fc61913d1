"""`config.EXPECTED_RESULTS`: compare the run's final metrics with expected values.

This runs at the end, when everything is saved. A metric outside its tolerance, a missing one
or NaN makes the command fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.distributed.collectives import broadcast_object
from sslengine.distributed.ranks import is_primary
from sslengine.dotted import no_such_metric
from sslengine.engines.run import Run
from sslengine.errors import UnexpectedResultError
from sslengine.monitor.history import flat


def check_results(run: Run, results: Mapping[str, Any]) -> None:
    """Check rank 0's results. results: by split, as in metrics.jsonl. Collective."""
    if read(run.config, RunOptions).EXPECTED_RESULTS:
        _raise(broadcast_object(_problems(run, results) if is_primary() else []))


def check_results_here(run: Run, results: Mapping[str, Any]) -> None:
    """The same on this rank alone, after the others have ended."""
    _raise(_problems(run, results))


def _problems(run: Run, results: Mapping[str, Any]) -> list[str]:
    expected, problems = read(run.config, RunOptions).EXPECTED_RESULTS, []
    if expected:
        metrics = dict(flat(results))
        for name, value, tolerance in expected:
            problem = _problem(metrics, name, value, tolerance)
            verdict = "NOT as expected" if problem else "as expected"
            got = metrics.get(name, "missing")
            run.console.print(f"  {verdict}  {name}: {got}, expected {value} +- {tolerance}")
            problems += [problem] if problem else []
    return problems


def _raise(problems: list[str]) -> None:
    if problems:
        raise UnexpectedResultError(
            "config.EXPECTED_RESULTS: the run is complete and saved, but\n  "
            + "\n  ".join(problems)
        )


def _problem(metrics: Mapping[str, Any], name: str, value: float, tolerance: float) -> str:
    if name not in metrics:
        return no_such_metric(name, metrics)
    got = metrics[name]
    if isinstance(got, (int, float)) and abs(got - value) <= tolerance:  # never so for NaN
        return ""
    return f"{name} is {got}, expected {value} +- {tolerance}."
