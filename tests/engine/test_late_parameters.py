"""Parameters that are made when the optimizer is there, or are in no module: not trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sslengine.errors import TrainingError
from sslengine.methods.base import Method, Step
from tests.engine.runs import Watch, make_task, train

HERE = __name__


def _loss(output: Tensor) -> Tensor:
    return (output - 1).square().mean()


class InForward(Method):
    def forward(self, output: Tensor, sample: dict[str, object], step: Step) -> Tensor:
        if not hasattr(self, "predictor"):
            self.predictor = nn.Linear(output.shape[1], 3)
        return _loss(self.predictor(output))


class InForwardOfTwo(nn.Module):
    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if not hasattr(self, "predictor"):
            self.predictor = nn.Linear(output.shape[1], 3)
        return _loss(self.predictor(output))


class Replaced(Method):
    def __init__(self) -> None:
        super().__init__()
        self.predictor = nn.Linear(8, 3)

    def before_phase(self, step: Step) -> None:
        if step.epoch == 1:
            self.predictor.weight = nn.Parameter(torch.ones(3, 8))

    def forward(self, output: Tensor, sample: dict[str, object], step: Step) -> Tensor:
        return _loss(self.predictor(output))


class Untrained(Method):
    """As VISSL's losses make their momentum encoders: in the first step, without gradient."""

    def forward(self, output: Tensor, sample: dict[str, object], step: Step) -> Tensor:
        if not hasattr(self, "encoder"):
            self.encoder = nn.Linear(output.shape[1], output.shape[1])
        with torch.no_grad():
            target = self.encoder(output)
        return (output - target).square().mean()


@pytest.mark.parametrize(
    ("name", "parameters", "steps"),
    [
        ("InForward", "loss.predictor.bias, loss.predictor.weight", 0),
        ("InForwardOfTwo", "loss.predictor.bias, loss.predictor.weight", 0),
        ("Replaced", "loss.predictor.weight", 4),
    ],
)
def test_they_are_named_before_anything_is_saved(
    tmp_path: Path, name: str, parameters: str, steps: int
) -> None:
    watch = Watch()
    with pytest.raises(TrainingError, match=f"no optimizer updates {parameters}: made after"):
        train(tmp_path, [watch], LOSS={"name": f"{HERE}:{name}"}, OPTIMIZER__num_epochs=2)
    assert len(watch.losses) == steps


def test_what_gets_no_gradient_may_come_late(tmp_path: Path) -> None:
    task = train(tmp_path, [], LOSS={"name": f"{HERE}:Untrained"}, OPTIMIZER__num_epochs=1)
    assert task.iteration == len(make_task(tmp_path, []).train_feed.batch_sizes)


class InList(Method):
    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.predictors = [nn.Linear(8, 3).requires_grad_(not frozen)]

    def forward(self, output: Tensor, sample: dict[str, object], step: Step) -> Tensor:
        return _loss(self.predictors[0](output))


@pytest.mark.parametrize("frozen", [False, True])
def test_modules_in_a_list_are_reported_once(
    tmp_path: Path, frozen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loss = {"name": f"{HERE}:InList", "InList": {"frozen": frozen}}
    train(tmp_path, [], LOSS=loss, OPTIMIZER__num_epochs=2, OPTIMIZER__accumulate=2)
    found = [each.getMessage() for each in caplog.records if "in no module" in each.getMessage()]
    assert len(found) == (not frozen)
    assert frozen or ("2 parameters" in found[0] and "(3, 8)" in found[0])
