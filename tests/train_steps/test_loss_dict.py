from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.errors import TrainingError
from sslengine.train_steps.loss_dict import loss_dict_train_step
from tests.train_steps.fakes import FakeTask, make_batch


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

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def update(self, output: Any, target: Any) -> None:
        self.seen.append((output, target))


def test_the_sum_is_minimised_and_each_loss_is_logged() -> None:
    batches = [make_batch(seed) for seed in range(3)]
    task = FakeTask(batches, Losses(), nn.Module())
    meter = Scores()
    task.active_meters = [meter]
    model = Losses()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        loss_dict_train_step(task)
        losses = model({key: value[0] for key, value in batch.items()})
        total = losses["right"] + losses["small"]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        assert torch.equal(task.base_model.linear.weight, model.linear.weight)
        (entry,) = task.ledger.drain()
        expected = {"loss": total, **losses}
        assert entry.parts == {name: value.item() for name, value in expected.items()}
    assert task.events[:4] == ["on_forward", "on_loss_and_meter", "on_backward", "on_update"]
    assert meter.seen == []  # in training the model gives no prediction


def test_in_a_test_phase_predictions_go_to_the_meters() -> None:
    task = FakeTask([make_batch()], Losses().eval(), nn.Module())
    meter = Scores()
    task.active_meters, task.train = [meter], False
    loss_dict_train_step(task)
    ((scores, target),) = meter.seen
    assert torch.equal(scores, Losses().linear(make_batch()["data"][0]))
    assert torch.equal(target, make_batch()["label"][0])
    assert task.ledger.drain() == []
    assert task.events == ["on_forward", "on_loss_and_meter"]


def test_in_a_test_phase_losses_are_recorded() -> None:
    task = FakeTask([make_batch()], Losses(), nn.Module())
    task.train = False
    loss_dict_train_step(task)
    assert task.ledger.drain()[0].parts.keys() == {"loss", "right", "small"}
    assert torch.equal(task.base_model.linear.weight, Losses().linear.weight)


def test_a_loss_that_is_not_finite_is_named_with_all_others() -> None:
    batch = make_batch()
    batch["data"][0][0, 0] = float("inf")
    task = FakeTask([batch], Losses(), nn.Module())
    loss_dict_train_step(task)
    with pytest.raises(
        TrainingError, match=r"loss of iteration 0 is not finite: loss .*, right .*, small inf"
    ):
        task.ledger.flush()


def test_a_model_that_gives_no_losses_is_told() -> None:
    class Scored(Losses):
        def forward(self, batch: dict[str, Tensor]) -> Any:
            return self.linear(batch["data"])

    task = FakeTask([make_batch()], Scored(), nn.Module())
    with pytest.raises(
        TrainingError, match=r"Scored returned 'loss' as a tensor of shape \(4, 2\)"
    ):
        loss_dict_train_step(task)
