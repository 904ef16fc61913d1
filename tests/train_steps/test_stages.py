from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sslengine.errors import TrainingError
from sslengine.meters.accuracy import AccuracyListMeter
from sslengine.monitor.perf import STAGES
from sslengine.task.progress import Group
from sslengine.train_steps import stages
from sslengine.train_steps.standard import standard_train_step
from tests.train_steps.fakes import FakeTask, ListModel, make_batch


def _task(**changes: Any) -> FakeTask:
    task = FakeTask([make_batch(seed) for seed in range(9)], ListModel(), nn.CrossEntropyLoss())
    for name, value in changes.items():
        setattr(task, name, value)
    return task


def test_every_stage_is_timed_under_its_name() -> None:
    task = _task()
    standard_train_step(task)
    assert [row.name for row in task.perf.report()] == list(STAGES)
    assert all(row.count == 1 for row in task.perf.report())


def test_a_hook_may_replace_the_output() -> None:
    task = _task()

    def replace(task: Any) -> None:
        task.last_batch.model_output = torch.zeros(4, 2, requires_grad=True)

    task.on_event["on_forward"] = replace
    standard_train_step(task)
    (entry,) = task.ledger.drain()
    assert entry.parts["loss"] == pytest.approx(0.6931472)


def test_a_loss_may_have_parts() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": output.pow(2).mean(), "half": output.new_tensor(0.5)}

    task = _task(loss=loss)
    before = task.base_model.linear.weight.clone()
    standard_train_step(task)
    (entry,) = task.ledger.drain()
    assert set(entry.parts) == {"loss", "half"}
    assert not torch.equal(before, task.base_model.linear.weight)
    assert not task.last_batch.loss.requires_grad


def test_parts_without_a_loss_are_refused() -> None:
    task = _task(loss=lambda output, target: {"a": output.sum(), "b": output.sum()})
    with pytest.raises(TrainingError, match="'loss' is the one to minimise.*'a', 'b'"):
        standard_train_step(task)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (lambda output, target: output, "'loss'"),
        (lambda output, target: {"loss": output.sum(), "each": output}, "'each'"),
    ],
)
def test_what_is_no_number_is_refused(loss: Any, name: str) -> None:
    with pytest.raises(TrainingError, match=rf"{name} a tensor of shape \(4, 2\): take its mean"):
        standard_train_step(_task(loss=loss))


def test_meters_are_fed_and_events_come_after() -> None:
    meter = AccuracyListMeter()
    task = _task(active_meters=[meter])
    standard_train_step(task)
    assert 0 <= meter.value()["top_1"]["0"] <= 100


def test_gradients_of_a_group_add_up_by_weight() -> None:
    """Batches of a group, weighted: the gradient of the mean over all their samples."""
    batches = [make_batch(seed) for seed in range(3)]
    task = _task()
    weights = [0.5, 0.25, 0.25]
    for index, weight in enumerate(weights):
        task.group = Group(first=index == 0, last=index == 2, weight=weight)
        standard_train_step(task)
    reference = ListModel()
    total = sum(
        weight * nn.functional.cross_entropy(reference(batch["data"][0])[0], batch["label"][0])
        for weight, batch in zip(weights, batches, strict=True)
    )
    total.backward()
    torch.testing.assert_close(task.base_model.linear.weight.grad, reference.linear.weight.grad)
    assert task.progress.num_updates == 1
    assert task.wheres == [0.25]
    assert task.events.count("on_update") == 1
    assert task.events.count("on_backward") == 3


def test_the_next_group_starts_from_zero() -> None:
    task = _task()
    standard_train_step(task)
    alone = ListModel()
    alone.load_state_dict(task.base_model.state_dict())
    batch = make_batch(1)
    nn.functional.cross_entropy(alone(batch["data"][0])[0], batch["label"][0]).backward()
    standard_train_step(task)
    assert torch.equal(task.base_model.linear.weight.grad, alone.linear.weight.grad)


def test_the_loss_is_computed_in_single_precision_under_amp() -> None:
    seen = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append((output.dtype, torch.is_autocast_enabled("cpu")))
        return nn.functional.cross_entropy(output, target)

    from sslengine.precision import TorchAmp

    task = _task(loss=loss, precision=TorchAmp(torch.device("cpu"), torch.bfloat16))
    standard_train_step(task)
    assert seen == [(torch.float32, False)]


def test_the_main_loss() -> None:
    one = torch.ones(())
    assert stages.main_loss(one) is one
    assert stages.main_loss({"loss": one, "x": one + 1}) is one
