from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from sslengine.hooks.pictures import SavePictures, TensorBoardHistograms, grid
from sslengine.monitor.writers import Record, RunPlace, TensorBoardWriter, Writer
from tests.engine.tasks import ListModel, begin, make_batch


def test_rows_are_as_bright_as_their_first_panel() -> None:
    panels = torch.zeros(2, 3, 3, 4, 4)
    panels[:, 0, :, 0, 0] = 2.0
    panels[1, 0, :, 1, 1] = -2.0
    panels[0, 1] = 1.0  # half of the first panel's range
    panels[1, 2] = 9.0  # beyond it
    picture = grid(panels)
    side = 96 + 2  # small images are made larger, two white pixels stand between
    assert picture.shape == (3, 2 * side + 2, 3 * side + 2)
    assert picture[0, 50, side + 50].item() == pytest.approx(0.5)
    assert picture[0, side + 50, 2 * side + 50].item() == 1.0
    assert picture[0, side + 2 + 30, 2 + 30].item() == 0.0  # the lowest value of the first panel
    assert picture[0, side + 2 + 10, 2 + 10].item() == 1.0
    assert picture[:, 0].min().item() == 1.0


class Painter(nn.Module):
    """A model that owns its step, and gives what it has painted over the first channel."""

    def __init__(self) -> None:
        super().__init__()
        self.brush = nn.Parameter(torch.ones(()))

    def forward(self, data: Tensor, label: Any = None, mode: str = "loss") -> Any:
        painted = self.brush * data
        if mode != "loss":
            return painted
        return {"loss": painted.square().mean()}, painted, data[:, 0] > 0.5


class Gallery(Writer):
    def __init__(self) -> None:
        self.pictures: list[tuple[str, int, list[str]]] = []

    def write(self, record: Record) -> None:
        if record.images:
            self.pictures.append((record.split, record.iteration, list(record.images)))

    def close(self) -> None:
        pass


def draw(images: Tensor, painted: Tensor, hidden: Tensor) -> Tensor:
    assert len(images) == len(painted) == len(hidden) == 2
    return torch.stack([images, painted.detach()], dim=1)


@pytest.mark.parametrize("tests", [{}, {"TEST_EVERY_NUM_ITERATIONS": 1}])
def test_every_so_many_epochs_at_their_ends(tests: dict[str, Any]) -> None:
    batches = [{"data": torch.rand(5, 3, 4, 4)}] * 2
    task = begin(
        batches, Painter(), None, SavePictures("painted", draw, every=2, rows=2),
        validation=batches[:1], TRAINER__TRAIN_STEP_NAME="model_train_step",
        OPTIMIZER__num_epochs=4, **tests,
    )  # fmt: skip
    task.writers.append(gallery := Gallery())
    while True:
        while task.steps_left():
            task.step()
        task.on_phase_end()
        if task.done_training():
            break
        task.start_phase()
        task.on_phase_start()
    assert gallery.pictures == [("train", 4, ["painted"]), ("train", 8, ["painted"])]


def test_histograms_every_so_many_steps(tmp_path: Path) -> None:
    hooks = (
        TensorBoardHistograms(every=2, parameters=True, gradients=True),
        TensorBoardHistograms(every=1, parameters=False, gradients=False),
    )
    task = begin([make_batch()] * 3, ListModel(), nn.CrossEntropyLoss(), *hooks)
    task.writers.append(TensorBoardWriter(RunPlace(tmp_path, 0)))
    for _ in range(3):
        task.step()
    task.on_end()
    events = EventAccumulator(str(tmp_path / "tb_logs"), size_guidance={"histograms": 0})
    events.Reload()
    assert sorted(events.Tags()["histograms"]) == [
        "gradients/linear.bias",
        "gradients/linear.weight",
        "parameters/linear.bias",
        "parameters/linear.weight",
    ]
    assert [event.step for event in events.Histograms("parameters/linear.weight")] == [0, 2]
