"""Every writer that ships."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sslengine.registry import WRITERS
from sslengine.testing import Contract
from tests.contracts.cases import Of, cases, forgotten
from tests.monitor.fake_trackers import FakePackage, fake_package

assert fake_package  # a fixture


def of_tensorboard(folder: Path) -> list[float]:
    """The events of all files, as TensorBoard's own reader has them."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values = []
    for path in sorted((folder / "tb_logs").glob("events*")):
        events = reader.EventAccumulator(str(path)).Reload()
        if "train/loss" in events.Tags()["scalars"]:
            values += [(each.step, each.value) for each in events.Scalars("train/loss")]
    return [value for _, value in sorted(values)]


def of_server(folder: Path) -> list[float]:
    """What the stand-in for the package has of the run whose id is in the folder."""
    (file,) = (folder / "trackers").glob("*.json")
    rows = sys.modules[file.stem].runs[json.loads(file.read_text())["id"]]
    return [row["train/loss"] for _, row in rows if "train/loss" in row]


AGAIN = {"resumes_without_gaps": "its server ignores the steps of the last seconds"}
LINES = {"writes_every_record_once": "lines for a person", "resumes_without_gaps": "no file"}
WRITERS_SMALL: dict[str, Of] = {
    "json": Of(),
    "csv": Of(more={"without": dict.fromkeys(LINES, "it is made of metrics.jsonl")}),
    "tensorboard": Of(more={"read": of_tensorboard}),
    "tracker": Of({"module": "wandb"}, more={"read": of_server, "without": AGAIN}),
    "mlflow": Of(more={"read": of_server}),
    "console": Of(more={"without": LINES}),
    "log": Of(more={"without": LINES}),
    "images": Of(more={"without": dict.fromkeys(LINES, "it writes pictures alone")}),
}


@pytest.mark.parametrize(("tried", "promise"), cases("writer", WRITERS_SMALL))
def test_writer(tried: Contract, promise: str, fake_package: Callable[[str], FakePackage]) -> None:
    fake_package("wandb")
    fake_package("mlflow")
    tried.keep(promise)


def test_none_is_forgotten() -> None:
    assert forgotten(WRITERS, WRITERS_SMALL) == []
