from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.engine.loss_dict import sum_of_losses
from sslengine.errors import TrainingError
from sslengine.python.fit import PythonTask
from tests.engine.tasks import Seen, begin, make_batch


class Losses(nn.Module):
    """Two losses in training, scores in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2)

    def forward(self, batch: dict[str, Tensor]) -> Any:
        scores = self.linear(batch["data"])
        if not self.training:
            return scores
        return {
            "right": nn.functional.cross_entropy(scores, batch["label"]),
            "small": 0.1 * scores.square().mean(),
        }


class Scores:
    """A meter that keeps what it is shown."""

    name = "scores"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def update(self, output: Any, target: Any) -> None:
        self.seen.append((output, target))


def _begin(batches: list[Any], model: nn.Module, *hooks: Any, **changes: Any) -> PythonTask:
    step = "loss_dict_train_step"
    return begin(batches, model, None, *hooks, TRAINER__TRAIN_STEP_NAME=step, **changes)


def test_the_sum_is_minimised_and_each_loss_is_logged() -> None:
    batches = [make_batch(seed) for seed in range(3)]
    task = _begin(batches, Losses(), seen := Seen())
    task.state.active_meters = [meter := Scores()]
    model = Losses()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        task.step()
        losses = model(batch)
        total = losses["right"] + losses["small"]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        assert torch.equal(task.base_model.linear.weight, model.linear.weight)
        expected = {"loss": total, **losses}
        assert seen.parts[-1] == {name: value.item() for name, value in expected.items()}
    assert seen.events[:4] == ["on_forward", "on_loss_and_meter", "on_backward", "on_update"]
    assert meter.seen == []  # in training the model gives no prediction


def test_in_a_test_phase_predictions_go_to_the_meters() -> None:
    task = _begin([make_batch()], Losses(), seen := Seen(), test=True)
    task.state.active_meters = [meter := Scores()]
    task.step()
    ((scores, target),) = meter.seen
    assert torch.equal(scores, Losses().linear(make_batch()["data"]))
    assert torch.equal(target, make_batch()["label"])
    assert seen.parts == []
    assert seen.events == ["on_forward", "on_loss_and_meter"]


ONE, TWO = torch.tensor(1.0), torch.tensor([2.0])


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ({"a": torch.ones(2)}, "a: "),
        ({"loss": ONE, "b": ONE}, "'loss', 'b'"),
        ({}, "no loss"),
    ],
)
def test_what_is_no_loss_is_told(output: Any, named: str) -> None:
    with pytest.raises(TrainingError, match=f"Net .*{named}"):
        sum_of_losses(output, "Net")
