from __future__ import annotations

import torch
from torch import nn

from tests.engine.tasks import ListModel, Seen, begin, make_batch


def test_a_train_step_is_plain_pytorch_with_events() -> None:
    batches = [make_batch(seed) for seed in range(3)]
    task = begin(batches, ListModel(), nn.CrossEntropyLoss(), seen := Seen())
    model = ListModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches):
        task.step()
        loss = nn.functional.cross_entropy(model(batch["data"])[0], batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.equal(task.base_model.linear.weight, model.linear.weight)
        assert seen.parts[number]["loss"] == loss.item()
    assert seen.events[:4] == ["on_forward", "on_loss_and_meter", "on_backward", "on_update"]
    assert task.progress.num_updates == 3


def test_a_test_step_changes_nothing_and_fires_no_train_events() -> None:
    task = begin([make_batch()], ListModel(), nn.CrossEntropyLoss(), seen := Seen(), test=True)
    task.step()
    assert torch.equal(task.base_model.linear.weight, ListModel().linear.weight)
    assert task.base_model.linear.weight.grad is None
    assert seen.events == ["on_forward", "on_loss_and_meter"]
    assert not task.last_batch.model_output.requires_grad


def test_what_a_hook_can_see_of_the_step() -> None:
    task = begin([make_batch()], ListModel(), nn.CrossEntropyLoss())
    task.step()
    last = task.last_batch
    assert last.sample["data_idx"].tolist() == last.indices.tolist() == [0, 1, 2, 3]
    assert last.target is last.sample["target"]
    assert last.model_output.shape == (4, 2)
