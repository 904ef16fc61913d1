from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.methods.pictures import SavePictures, join_panels
from sslengine.monitor.writers import Record, Writer
from tests.engine.tasks import begin


def test_rows_are_as_bright_as_their_first_panel() -> None:
    panels = torch.zeros(2, 3, 3, 4, 4)
    panels[:, 0, :, 0, 0] = 2.0
    panels[1, 0, :, 1, 1] = -2.0
    panels[0, 1] = 1.0  # half of the first panel's range
    panels[1, 2] = 9.0  # beyond it
    picture = join_panels(panels)
    side = 96 + 2  # small images are made larger, two white pixels stand between
    assert picture.shape == (3, 2 * side + 2, 3 * side + 2)
    assert picture[0, 50, side + 50].item() == pytest.approx(0.5)
    assert picture[0, side + 50, 2 * side + 50].item() == 1.0
    assert picture[0, side + 2 + 30, 2 + 30].item() == 0.0  # the lowest value of the first panel
    assert picture[0, side + 2 + 10, 2 + 10].item() == 1.0
    assert picture[:, 0].min().item() == 1.0


class Painter(nn.Module):
    """A model that owns its step."""

    def __init__(self) -> None:
        super().__init__()
        self.brush = nn.Parameter(torch.ones(()))

    def forward(self, data: Tensor, label: Any = None, mode: str = "loss") -> Any:
        painted = self.brush * data
        return {"loss": painted.square().mean()} if mode == "loss" else painted


class Gallery(Writer):
    def __init__(self) -> None:
        self.pictures: list[tuple[str, int, list[str]]] = []

    def write(self, record: Record) -> None:
        if record.images:
            self.pictures.append((record.split, record.iteration, list(record.images)))

    def close(self) -> None:
        pass


def draw(rows: int) -> Tensor:
    return torch.rand(rows, 2, 3, 4, 4)


@pytest.mark.parametrize("tests", [{}, {"TEST_EVERY_NUM_ITERATIONS": 1}])
def test_every_so_many_epochs_at_their_ends(tests: dict[str, Any]) -> None:
    batches = [{"data": torch.rand(5, 3, 4, 4)}] * 2
    task = begin(
        batches, Painter(), None, SavePictures(draw, every=2, rows=2),
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
    assert gallery.pictures == [("train", 4, ["mae"]), ("train", 8, ["mae"])]
