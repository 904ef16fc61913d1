from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.hooks.pictures import SavePictures, grid


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


def make_task(epoch: int, last_step: int = 4, train: bool = True) -> Any:
    put: list[Any] = []
    batch = SimpleNamespace(
        sample={"input": {"data": torch.rand(5, 3, 4, 4)}},
        vis_preds=torch.ones(5),
        vis_masks=torch.zeros(5),
    )
    return SimpleNamespace(
        train=train, last_batch=batch, train_feed=SimpleNamespace(steps_per_epoch=4), put=put,
        phase=SimpleNamespace(epoch=epoch, last_step=last_step),
        storage=SimpleNamespace(put_image=lambda *given: put.append(given)),
    )  # fmt: skip


def draw(images: Tensor, painted: Tensor, hidden: Tensor) -> Tensor:
    assert len(images) == len(painted) == len(hidden) == 2
    return torch.stack([images, images], dim=1)


@pytest.mark.parametrize(
    ("epoch", "last_step", "training", "drawn"),
    [(0, 4, True, 0), (1, 4, True, 1), (1, 2, True, 0), (1, 4, False, 0), (3, 4, True, 1)],
)
def test_every_so_many_epochs(epoch: int, last_step: int, training: bool, drawn: int) -> None:
    task = make_task(epoch, last_step, training)
    SavePictures("painted", draw, every=2, rows=2).on_phase_end(task)
    assert [name for name, _ in task.put] == ["painted"] * drawn
