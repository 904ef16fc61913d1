from __future__ import annotations

import pytest
import torch
from torch import nn

from sslengine.train_steps.standard import standard_train_step
from tests.train_steps.fakes import FakeTask, ListModel, make_batch


def test_a_train_step_is_plain_pytorch_with_events() -> None:
    batches = [make_batch(seed) for seed in range(3)]
    task = FakeTask(batches, ListModel(), nn.CrossEntropyLoss())
    model = ListModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        assert standard_train_step(task) is task
        loss = nn.functional.cross_entropy(model(batch["data"][0])[0], batch["label"][0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.equal(task.base_model.linear.weight, model.linear.weight)
        assert task.ledger.drain()[0].parts["loss"] == loss.item()
    assert task.events[:4] == ["on_forward", "on_loss_and_meter", "on_backward", "on_update"]
    assert task.progress.num_updates == 3


def test_a_test_step_changes_nothing_and_fires_no_train_events() -> None:
    task = FakeTask([make_batch()], ListModel(), nn.CrossEntropyLoss())
    task.train = False
    standard_train_step(task)
    assert torch.equal(task.base_model.linear.weight, ListModel().linear.weight)
    assert task.base_model.linear.weight.grad is None
    assert task.events == ["on_forward", "on_loss_and_meter"]
    assert not task.last_batch.model_output.requires_grad


def test_what_a_hook_can_see_of_the_step() -> None:
    task = FakeTask([make_batch()], ListModel(), nn.CrossEntropyLoss())
    standard_train_step(task)
    last = task.last_batch
    assert last.sample["data_idx"].tolist() == last.indices.tolist() == [0, 1, 2, 3]
    assert last.target is last.sample["target"]
    assert last.model_output.shape == (4, 2)


def test_an_error_of_the_loader_is_not_swallowed() -> None:
    task = FakeTask([], ListModel(), nn.CrossEntropyLoss())
    with pytest.raises(StopIteration):
        standard_train_step(task)
