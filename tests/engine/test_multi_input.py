from __future__ import annotations

import torch
from torch import nn

from sslengine.registry import TRAIN_STEPS
from tests.engine.tasks import ListModel, Seen, begin, make_batch


def test_inputs_reach_the_model_by_name() -> None:
    batch = make_batch()
    # The feed knows a batch's size by its `data`, which this step leaves alone.
    batch |= {"images": batch["data"], "patches": batch["data"] * 2}
    task = begin(
        [batch], ListModel(inputs=6), nn.CrossEntropyLoss(), seen := Seen(),
        TRAINER__TRAIN_STEP_NAME="multi_input_train_step",
        DATA__TRAIN__INPUT_KEY_NAMES=["images", "patches"],
    )  # fmt: skip
    task.step()
    both = torch.cat([batch["images"], batch["patches"]], dim=1)
    loss = nn.functional.cross_entropy(ListModel(inputs=6).linear(both), batch["label"])
    assert seen.parts == [{"loss": loss.item()}]
    assert task.progress.num_updates == 1


def test_the_step_has_two_names() -> None:
    assert TRAIN_STEPS.get("pirl_train_step") is TRAIN_STEPS.get("multi_input_train_step")
