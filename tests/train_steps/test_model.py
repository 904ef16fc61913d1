from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.train_steps.model import ModelStepOptions, ModelTrainStep
from tests.train_steps.fakes import FakeTask, make_batch
from tests.train_steps.test_loss_dict import Scores


class Owner(nn.Module):
    """A model that owns its step, with everything that such a model may have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2)
        self.trainings: list[bool] = []

    def data_preprocessor(self, data: Any, training: bool) -> Any:
        self.trainings.append(training)
        return {**data, "data": 2 * data["data"]}

    def forward(self, data: Tensor, label: Tensor, mode: str = "tensor") -> Any:
        scores = self.linear(data)
        if mode == "loss":
            losses = {
                "loss_right": nn.functional.cross_entropy(scores, label, reduction="none"),
                "loss_small": [scores.square(), scores.abs()],
                "accuracy": (scores.argmax(1) == label).float(),
            }
            return losses, scores, label
        return scores


def step(task: Any, **arguments: str) -> None:
    ModelTrainStep(ModelStepOptions(ARGUMENTS=arguments))(task)


def test_a_train_step_of_the_model_is_plain_pytorch() -> None:
    batches = [make_batch(seed) for seed in range(3)]
    task = FakeTask(batches, Owner(), nn.Module())
    model = Owner()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        step(task)
        scores, label = model.linear(2 * batch["data"][0]), batch["label"][0]
        right = nn.functional.cross_entropy(scores, label)
        small = scores.square().mean() + scores.abs().mean()
        optimizer.zero_grad()
        (right + small).backward()
        optimizer.step()
        torch.testing.assert_close(task.base_model.linear.weight, model.linear.weight)
        (entry,) = task.ledger.drain()
        accuracy = (scores.argmax(1) == label).float().mean()
        expected = [right + small, right, small, accuracy]
        assert list(entry.parts) == ["loss", "loss_right", "loss_small", "accuracy"]
        assert list(entry.parts.values()) == pytest.approx([each.item() for each in expected])
        assert task.last_batch.vis_masks is label
        torch.testing.assert_close(task.last_batch.vis_preds, scores)
    assert task.base_model.trainings == [True] * 3
    assert task.events[:4] == ["on_forward", "on_loss_and_meter", "on_backward", "on_update"]


def test_without_steps_of_its_own_test_phases_predict() -> None:
    task = FakeTask([make_batch()], Owner(), nn.Module())
    meter = Scores()
    task.active_meters, task.train = [meter], False
    step(task)
    ((scores, _),) = meter.seen
    assert torch.equal(scores, Owner().linear(2 * make_batch()["data"][0]))
    assert task.base_model.trainings == [False]
    assert task.last_batch.vis_preds is None


@pytest.mark.parametrize(("test_only", "expected"), [(False, 5.0), (True, 7.0)])
def test_a_models_own_test_steps(test_only: bool, expected: float) -> None:
    class Tested(Owner):
        def val_step(self, data: Any) -> Any:
            return {"loss_val": torch.tensor(5.0)}

        def test_step(self, data: Any) -> Any:
            return torch.tensor(7.0)

    task = FakeTask([make_batch()], Tested(), nn.Module())
    task.train, task.test_only = False, test_only
    if test_only:  # a bare number has no "loss" in its name, and is one all the same
        step(task)
        assert task.ledger.drain()[0].parts == {"loss": expected}
    else:
        step(task)
        assert task.ledger.drain()[0].parts == {"loss": expected, "loss_val": expected}


def test_arguments_have_the_models_names() -> None:
    class Renamed(nn.Module):
        def forward(self, imgs: Tensor, idx: Tensor, mode: str) -> Any:
            return {"loss": (imgs.sum() * weight).sum() + 0 * idx.sum()}

    weight = nn.Parameter(torch.ones(1))
    task = FakeTask([make_batch(), make_batch()], nn.ParameterList([weight]), nn.Module())
    task.model = task.base_model = Renamed()
    task.precision.step = lambda _: None  # type: ignore[method-assign, assignment]
    step(task, imgs="data", idx="data_idx")
    assert task.ledger.drain()[0].parts["loss"] == make_batch()["data"][0].sum().item()
    with pytest.raises(
        ConfigError,
        match="ARGUMENTS.imgs: the batch has no 'date', it has data, .*Did you mean 'data'",
    ):
        step(task, imgs="date")


def test_batches_of_the_users_own_form() -> None:
    calls: list[Any] = []

    class Any_(Owner):
        data_preprocessor = None  # type: ignore[assignment]

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            calls.append((args, kwargs))
            return {"loss": self.linear.weight.sum()}

    task = FakeTask([(1, 2), [3], {"a": 4}, "text"], Any_(), nn.Module())
    for _ in range(3):
        step(task)
    loss = {"mode": "loss"}
    assert calls == [((1, 2), loss), ((3,), loss), ((), {"a": 4, **loss})]
    with pytest.raises(TypeError, match="gives the model a dict's values as keywords.* is a str"):
        step(task)
