from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from sslengine.hooks.tensorboard import TensorBoardHistograms
from sslengine.monitor.writers import TensorBoardWriter


def test_histograms_every_so_many_steps(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    model(model.weight).sum().backward()
    writer = TensorBoardWriter(tmp_path)
    task = SimpleNamespace(learner=model, writers=[writer], iteration=0)
    hook = TensorBoardHistograms(every=2, parameters=True, gradients=True)
    for task.iteration in range(3):
        hook.on_update(task)
    TensorBoardHistograms(every=1, parameters=False, gradients=False).on_update(task)
    writer.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0})
    events.Reload()
    tags = events.Tags()["histograms"]
    assert sorted(tags) == [
        "gradients/bias",
        "gradients/weight",
        "parameters/bias",
        "parameters/weight",
    ]
    assert [event.step for event in events.Histograms("parameters/weight")] == [0, 2]
