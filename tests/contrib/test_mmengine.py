from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.contrib.mmengine import parse
from sslengine.errors import ConfigError, TrainingError
from sslengine.python.fit import PythonTask
from tests.engine.tasks import Seen, begin, make_batch
from tests.engine.test_loss_dict import Scores


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


def _begin(
    batches: list[Any], model: nn.Module, *hooks: Any, arguments: Any = None, **changes: Any
) -> PythonTask:
    trainer = {
        "TRAIN_STEP_NAME": "model_train_step", "model_train_step": {"ARGUMENTS": arguments or {}}
    }  # fmt: skip
    return begin(batches, model, None, *hooks, TRAINER=trainer, **changes)


def test_a_train_step_of_the_model_is_plain_pytorch() -> None:
    batches = [make_batch(seed) for seed in range(3)]
    task = _begin(batches, Owner(), seen := Seen())
    model = Owner()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        task.step()
        scores, label = model.linear(2 * batch["data"]), batch["label"]
        right = nn.functional.cross_entropy(scores, label)
        small = scores.square().mean() + scores.abs().mean()
        optimizer.zero_grad()
        (right + small).backward()
        optimizer.step()
        torch.testing.assert_close(task.base_model.linear.weight, model.linear.weight)
        accuracy = (scores.argmax(1) == label).float().mean()
        expected = [right + small, right, small, accuracy]
        assert list(seen.parts[-1]) == ["loss", "loss_right", "loss_small", "accuracy"]
        assert list(seen.parts[-1].values()) == pytest.approx([each.item() for each in expected])
        assert task.last_batch.vis_masks is label
        torch.testing.assert_close(task.last_batch.vis_preds, scores)
    assert task.base_model.trainings == [True] * 3
    assert seen.events[:4] == ["on_forward", "on_loss_and_meter", "on_backward", "on_update"]


def test_without_steps_of_its_own_test_phases_predict() -> None:
    task = _begin([make_batch()], Owner(), test=True)
    task.state.active_meters = [meter := Scores()]
    task.step()
    ((scores, _),) = meter.seen
    assert torch.equal(scores, Owner().linear(2 * make_batch()["data"]))
    assert task.base_model.trainings == [False]
    assert task.last_batch.vis_preds is None


class OwnTests(Owner):
    def val_step(self, data: Any) -> Any:
        return {"loss_val": torch.tensor(5.0)}

    def test_step(self, data: Any) -> Any:
        return torch.tensor(7.0)


def test_a_models_own_step_of_a_run_that_only_tests() -> None:
    task = _begin([make_batch()], OwnTests(), seen := Seen(), test=True)
    task.step()  # a bare number has no "loss" in its name, and is one all the same
    assert seen.parts == [{"loss": 7.0}]


def test_a_models_own_step_of_a_test_phase_between_train_phases() -> None:
    task = _begin([make_batch()], OwnTests(), seen := Seen(), validation=[make_batch()])
    task.step()
    task.on_phase_end()
    task.start_phase()
    task.on_phase_start()
    task.step()
    assert seen.parts[-1] == {"loss": 5.0, "loss_val": 5.0}


def test_arguments_have_the_models_names() -> None:
    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, imgs: Tensor, idx: Tensor, mode: str) -> Any:
            return {"loss": (imgs.sum() * self.weight).sum() + 0 * idx.sum()}

    names = {"imgs": "data", "idx": "data_idx"}
    _begin([make_batch()], Renamed(), seen := Seen(), arguments=names).step()
    assert seen.parts == [{"loss": make_batch()["data"].sum().item()}]
    with pytest.raises(
        ConfigError,
        match="ARGUMENTS.imgs: the batch has no 'date', it has .*Did you mean 'data'",
    ):
        _begin([make_batch()], Renamed(), arguments={"imgs": "date"}).step()


def test_batches_of_the_users_own_form() -> None:
    calls: list[Any] = []

    class Any_(Owner):
        data_preprocessor = None  # type: ignore[assignment]

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            calls.append((args, kwargs))
            return {"loss": self.linear.weight.sum()}

    task = _begin([make_batch()] * 4, Any_())
    task.state.reading.batches = iter([(1, 2), [3], {"a": 4}, "text"])  # as collators make them
    for _ in range(3):
        task.step()
    loss = {"mode": "loss"}
    assert calls == [((1, 2), loss), ((3,), loss), ((), {"a": 4, **loss})]
    with pytest.raises(TypeError, match="gives the model a dict's values as keywords.* is a str"):
        task.step()


def test_a_models_own_parse_losses_decides() -> None:
    class Parses:
        def parse_losses(self, losses: Any) -> Any:
            return losses["a"] * 10, {"a": losses["a"], "loss": losses["a"] * 10}

    parts = parse(Parses(), {"a": torch.tensor(2.0)})
    assert {name: value.item() for name, value in parts.items()} == {"loss": 20.0, "a": 2.0}


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (torch.ones(2), "Linear must return a dict of losses .*it returned a Tensor"),
        ({"acc": torch.ones(2)}, 'returned acc: what is to be minimised has "loss" in its name'),
        ({}, "returned nothing"),
        ({"loss": 3.0}, "loss is a float, not a tensor"),
    ],
)
def test_what_is_no_loss_is_told(losses: Any, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        parse(nn.Linear(1, 1), losses)
