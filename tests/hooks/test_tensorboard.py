from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from sslengine.hooks.pictures import TensorBoardHistograms
from sslengine.monitor.writers import TensorBoardWriter
from tests.train_steps.tasks import ListModel, begin, make_batch


def test_histograms_every_so_many_steps(tmp_path: Path) -> None:
    hooks = (
        TensorBoardHistograms(every=2, parameters=True, gradients=True),
        TensorBoardHistograms(every=1, parameters=False, gradients=False),
    )
    task = begin([make_batch()] * 3, ListModel(), nn.CrossEntropyLoss(), *hooks)
    task.writers.append(TensorBoardWriter(tmp_path))
    for _ in range(3):
        task.step()
    task.on_end()
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0})
    events.Reload()
    assert sorted(events.Tags()["histograms"]) == [
        "gradients/linear.bias",
        "gradients/linear.weight",
        "parameters/linear.bias",
        "parameters/linear.weight",
    ]
    assert [event.step for event in events.Histograms("parameters/linear.weight")] == [0, 2]
