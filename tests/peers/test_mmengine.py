"""The same model, data and seed in mmengine's own step and in model_train_step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.engine import loop
from tests.engine.runs import Watch, make_task

pytest.importorskip("mmengine")

CHANGES: dict[str, Any] = {
    "TRAINER__TRAIN_STEP_NAME": "model_train_step",
    "TRAINER__model_train_step": {"ARGUMENTS": {"imgs": "data", "labels": "label"}},
    "LOSS__name": "",
    "MODEL__BASE_MODEL_NAME": "tests.peers.mmengine_toy:Toy",
    "DATA__TRAIN__TRANSFORMS": [{"name": "RandomResizedCrop", "size": 8}, {"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
    "OPTIMIZER": {
        "name": "sgd", "num_epochs": 5, "momentum": 0.9, "weight_decay": 0.001,
        "regularize_bias": True,
        "param_schedulers": {"lr": {"name": "constant", "value": 0.1}},
    },
}  # fmt: skip


def test_twenty_losses_are_the_same(tmp_path: Path) -> None:
    from mmengine.optim import OptimWrapper

    from tests.peers.mmengine_toy import Toy

    ours = Watch()
    task = make_task(tmp_path, [ours], **CHANGES)
    theirs, model = [], Toy()
    feed = make_task(tmp_path, [], **CHANGES).train_feed
    wrapper = OptimWrapper(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.001)
    )
    for epoch in range(5):
        for batch in feed.batches(epoch):
            data = {"imgs": batch["data"][0], "labels": batch["label"][0]}
            theirs.append(model.train_step(data, wrapper)["loss"].item())
    loop.run(task)
    assert len(theirs) == 20
    assert ours.losses == pytest.approx(theirs, rel=1e-5)
    for one, two in zip(task.base_model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_its_test_steps_predict(tmp_path: Path) -> None:
    from tests.peers.mmengine_toy import Toy

    test = {
        "DATA_SOURCES": ["synthetic"], "RANDOM_SYNTHETIC_IMAGES": True, "DATA_LIMIT": 4,
        "DEFAULT_GRAY_IMG_SIZE": 8, "BATCHSIZE_PER_REPLICA": 4, "TRANSFORMS": [{"name": "ToTensor"}],
    }  # fmt: skip
    task = make_task(tmp_path, [], **CHANGES, TEST_MODEL=True, DATA__TEST=test)
    loop.run(task)
    images = task.last_batch.sample["input"]["data"]
    expected = task.base_model.val_step({"imgs": images})
    assert isinstance(task.base_model, Toy)
    assert torch.equal(task.last_batch.model_output, expected)
