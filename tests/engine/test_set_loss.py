"""The loss over a set, in the middle of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.engine import loop
from sslengine.engine.task import SelfSupervisionTask
from sslengine.hooks.events import Hook
from tests.engine.runs import Watch, make_task, same, train, weights
from tests.ranks import RankPool

IMAGES: dict[str, Any] = {
    "DATA_SOURCES": ["synthetic"], "RANDOM_SYNTHETIC_IMAGES": True, "DEFAULT_GRAY_IMG_SIZE": 8,
    "LABEL_SOURCES": ["synthetic"], "RANDOM_SYNTHETIC_LABELS": 8, "BATCHSIZE_PER_REPLICA": 4,
    "TRANSFORMS": [{"name": "ToTensor"}], "COLLATE_FUNCTION": "default_collate",
}  # fmt: skip
SUPERVISED: dict[str, Any] = {
    "TEST_MODEL": True,
    "DATA__TRAIN": {**IMAGES, "DATA_LIMIT": 14, "DROP_LAST": True},
    "DATA__TEST": {**IMAGES, "DATA_LIMIT": 10},
    "LOSS": {"name": "CrossEntropyLoss"},
}


class Ask(Hook):
    """After each train phase; and what a loop over the whole set gives."""

    def __init__(self, *sets: str) -> None:
        self.sets = sets
        self.found: list[dict[str, float]] = []

    def on_phase_end(self, task: Any) -> None:
        if task.train:
            self.found.append({name: task.set_loss(name)["loss"] for name in self.sets})


def plain(task: SelfSupervisionTask, split: str) -> float:
    dataset = task.parts.feeds.ordered(split).dataset
    images, labels = [], []
    for index in range(len(dataset)):
        sample = dataset[(0, index)]
        images.append(sample["data"][0])
        labels.append(sample["label"][0])
    model = task.base_model.eval()
    with torch.no_grad():
        (output,) = model(torch.stack(images))
    target: Tensor = torch.tensor(labels)
    return torch.nn.functional.cross_entropy(output, target).item()


def test_it_is_the_mean_over_the_whole_set(tmp_path: Path) -> None:
    ask = Ask("TRAIN", "TEST")
    task = train(tmp_path, [ask], **SUPERVISED)
    for split in ("TRAIN", "TEST"):  # all 14, though training drops the last 2
        assert ask.found[-1][split] == pytest.approx(plain(task, split), rel=1e-5)
    assert task.phase_results["loss"] == pytest.approx(ask.found[-1]["TEST"], rel=1e-6)


MOMENTUM: dict[str, Any] = {
    "LOSS": {"name": "moco_loss", "moco_loss": {"embedding_dim": 8, "queue_size": 32}},
    "DATA__TRAIN__COLLATE_FUNCTION": "moco_collator",
}


@pytest.mark.parametrize("changes", [{}, SUPERVISED, MOMENTUM])
def test_the_run_goes_on_as_without_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    """SimCLR's loss, cross entropy, and one with a queue and a teacher, which stay as they are."""
    watch, other, ask = Watch(), Watch(), Ask("TRAIN")
    one = train(tmp_path, [watch], **changes)
    two = train(tmp_path, [other, ask], **changes)
    assert watch.losses == other.losses
    assert same(weights(one), weights(two))
    assert same(one.loss.state_dict(), two.loss.state_dict())
    assert one.get_classy_state()["ranks"][0]["rng"]["torch"].equal(
        two.get_classy_state()["ranks"][0]["rng"]["torch"]
    )
    assert len(ask.found) == 2


def _ask(folder: Path, changes: dict[str, Any]) -> list[dict[str, float]]:
    ask = Ask("TRAIN", "TEST")
    loop.run(make_task(folder, [ask], **changes))
    return ask.found


def test_ranks_count_each_sample_once(tmp_path: Path) -> None:
    """At a learning rate of 0, so that one rank and two have the same model."""
    lr = {"name": "constant", "value": 0.0}
    changes = {**SUPERVISED, "OPTIMIZER__param_schedulers__lr": lr, "OPTIMIZER__num_epochs": 1,
               "MODEL__FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True, "FREEZE_TRUNK_ONLY": True}}  # fmt: skip
    (alone,) = _ask(tmp_path / "one", changes)
    changes = {**changes, "DISTRIBUTED__NUM_PROC_PER_NODE": 2}
    with RankPool(2) as pool:
        for (found,) in pool.run(_ask, tmp_path / "two", changes):
            assert found == pytest.approx(alone, rel=1e-5)
