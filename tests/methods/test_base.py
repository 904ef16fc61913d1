"""What a method needs, and when its phases are told to begin."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.engine import loop
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook
from sslengine.methods.base import Method, Step
from tests.engine.runs import Watch, make_task, train
from tests.methods.resuming import KeepState

CHANGES: dict[str, Any] = {
    "LOSS__name": f"{__name__}:Phases", "DATA__TRAIN__DATA_LIMIT": 16,
    "DATA__TRAIN__TRAIN_PHASES_PER_EPOCH": 2, "DATA__TRAIN__LABEL_TYPE": "sample_index",
}  # fmt: skip


class _Plain(Method):
    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return output.sum()


class Phases(_Plain):
    """Notes when phases begin, and what is in the training set then."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[int, int, int]] = []
        self.samples: list[int] = []
        self.pixels: list[Tensor] = []

    def before_phase(self, step: Step) -> None:
        assert self.training
        self.begun.append((step.phase, step.epoch, step.iteration))
        if step.phase == 0:
            for sample in step.training_set():
                self.samples += sample["target"].chunk(2)[0].tolist()
                self.pixels.append(sample["input"])


def test_a_method_needs_a_forward_and_nothing_else() -> None:
    method = _Plain()
    assert method(torch.ones(2), torch.ones(2)).item() == 2
    assert method.hooks() == []
    assert method.rank_state() == {}
    method.load_rank_state({})


class Misspelt(_Plain):
    def after_step(self, step: Step) -> None:
        raise AssertionError("never called")


class NamedAsOfHooks(_Plain):
    def on_update(self, step: Step) -> None:
        raise AssertionError("never called")


class Unannounced(_Plain, Hook):
    """A hook that no hooks() returns."""

    def on_update(self, task: Any) -> None:
        raise AssertionError("never called")


class Announced(_Plain, Hook):
    seen = 0

    def on_update(self, task: Any) -> None:
        self.seen += 1

    def hooks(self) -> list[Hook]:
        return [self]


class _OfAnother:
    def on_fit_start(self) -> None:
        """Called by another package, if at all."""


class OfBoth(_OfAnother, _Plain):
    def on_fit_start(self) -> None:
        super().on_fit_start()


@pytest.mark.parametrize(
    ("kind", "nearest"),
    [(Misspelt, "after_step"), (NamedAsOfHooks, "on_update"), (Unannounced, "on_update")],
)
def test_a_callback_that_is_never_called_is_an_error(
    tmp_path: Path, kind: type[Method], nearest: str
) -> None:
    changes = {**CHANGES, "LOSS__name": f"{__name__}:{kind.__name__}"}
    message = rf"{kind.__name__}\.{nearest}: .* mean 'after_update'\? There are before_phase, af"
    with pytest.raises(ConfigError, match=message):
        make_task(tmp_path, [], **changes)


def test_a_method_may_be_a_hook_or_of_another_base_class(tmp_path: Path) -> None:
    task = train(tmp_path, [], **{**CHANGES, "LOSS__name": f"{__name__}:Announced"})
    assert task.loss.seen == task.num_updates > 0
    make_task(tmp_path, [], **{**CHANGES, "LOSS__name": f"{__name__}:OfBoth"})


def test_phases_begin_once(tmp_path: Path) -> None:
    """Two epochs of four steps, in halves; resumed within the second phase, and at its end."""
    watch, keep, at_end = Watch(), KeepState(after=3), KeepState(after=4)
    task = make_task(tmp_path, [watch, keep, at_end], **CHANGES)
    loop.run(task)
    every = [(0, 0, 0), (1, 0, 2), (2, 1, 4), (3, 1, 6)]
    assert task.loss.begun == every
    assert sorted(task.loss.samples) == list(range(16))
    for state, left in ((keep.state, every[2:]), (at_end.state, every[2:])):
        resumed = make_task(tmp_path, [], **CHANGES)
        resumed.set_classy_state(state)
        loop.run(resumed)
        assert resumed.loss.begun == left


def test_before_a_phase_crops_are_none_that_are_trained_on(tmp_path: Path) -> None:
    task = make_task(tmp_path, [], **CHANGES)
    task.start_phase()
    trained = torch.cat([b["data"][0] for e in (0, 1) for b in task.train_feed.batches(e)])
    for images in task.loss.pixels:
        for image in images:
            assert not (trained == image).flatten(1).all(dim=1).any()
