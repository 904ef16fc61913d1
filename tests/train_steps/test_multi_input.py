from __future__ import annotations

import torch
from torch import nn

from sslengine.registry import TRAIN_STEPS
from sslengine.train_steps.multi_input import multi_input_train_step
from tests.train_steps.fakes import FakeTask, ListModel, make_batch


def test_inputs_reach_the_model_by_name() -> None:
    batch = make_batch()
    batch = {"images": batch["data"], "patches": [batch["data"][0] * 2], "label": batch["label"]}
    task = FakeTask([batch], ListModel(inputs=6), nn.CrossEntropyLoss())
    task.input_keys = ["images", "patches"]
    multi_input_train_step(task)
    model = ListModel(inputs=6)
    both = torch.cat([batch["images"][0], batch["patches"][0]], dim=1)
    loss = nn.functional.cross_entropy(model.linear(both), batch["label"][0])
    assert task.ledger.drain()[0].parts["loss"] == loss.item()
    assert task.progress.num_updates == 1


def test_the_step_has_two_names() -> None:
    import sslengine.train_steps  # noqa: F401

    assert TRAIN_STEPS.get("pirl_train_step") is TRAIN_STEPS.get("multi_input_train_step")
