"""A pytest plugin: one line of JSON for each test as it ends, in $SSLENGINE_RESULTS.

pytest writes its own reports at its end, and a run with a time limit may be stopped before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called for each part of a test; with several processes also in the first of them."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.when != "call" and not report.failed and not report.skipped:
        return
    line = {"name": report.nodeid, "outcome": report.outcome, "why": _why(report)}
    with Path(os.environ["SSLENGINE_RESULTS"]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def _why(report: pytest.TestReport) -> str:
    if not report.failed:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longrepr).strip().splitlines()
    return lines[0] if lines else "failed"
