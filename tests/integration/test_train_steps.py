"""The examples of docs/train_steps.md: two steps of each, on one rank and on two."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine import contrib, engine
from sslengine.config.resolve import resolve
from sslengine.distributed.ranks import world_size
from sslengine.engine import loop
from sslengine.engine.services import Services
from sslengine.engine.step import TrainStep
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import TrainingError
from sslengine.registry import TRAIN_STEPS, register_train_step
from tests.engine.runs import Watch, make_task
from tests.ranks import RankPool
from tests.registries import as_before
from tests.tail import slow_but

DOC = Path(__file__).resolve().parents[2] / "docs" / "train_steps.md"
EXAMPLES = re.findall(r"^\| `(\w+)`.*\| `(config=[^`]+)` \|$", DOC.read_text(), re.MULTILINE)
SMALL = (
    "config.DATA.TRAIN.DATA_LIMIT=8", "config.OPTIMIZER.num_epochs=1", "config.LOG_FREQUENCY=1",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
)  # fmt: skip


def _codes() -> dict[str, str]:
    """The document's Python, by what it registers."""
    blocks = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    return {re.findall(r'@register_\w+\("(\w+)"', code)[0]: code for code in blocks}


def _train(example: str, folder: Path) -> tuple[str, list[float], list[Tensor]]:
    ranks = world_size()
    if "my_model" in example:
        sys.modules["my_model"] = ModuleType("my_model")
        exec(compile(_codes()["two_losses"], str(DOC), "exec"), vars(sys.modules["my_model"]))
    more = [
        *SMALL,
        f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA={4 // ranks}",
        f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}",
        f"config.CHECKPOINT.DIR='{folder}'",
    ]
    if "pirl" in example:
        more.append("config.LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives=4")
    run = resolve([*example.split(), *more])
    watch = Watch()
    task = SelfSupervisionTask(
        run.config, folder, torch.device("cpu"), hooks=[watch], services=Services()
    )
    task.prepare()
    loop.run(task)
    return run.config.TRAINER.TRAIN_STEP_NAME, watch.losses, list(task.base_model.parameters())


def test_every_shipped_step_has_an_example() -> None:
    named = {name for name, _ in EXAMPLES} | set(re.findall(r"alias `(\w+)`", DOC.read_text()))
    shipped = {
        name
        for each in (engine, contrib)
        for name in re.findall(r"\w+_train_step", Path(each.__file__).read_text())
    }
    assert named == shipped


@pytest.mark.parametrize(("name", "example"), slow_but(EXAMPLES[:3], EXAMPLES))
def test_two_steps_on_one_rank_and_on_two(
    tmp_path: Path, two_ranks: RankPool, name: str, example: str
) -> None:
    torch.manual_seed(0)
    used, alone, _ = _train(example, tmp_path / "alone")
    assert used == name
    assert len(alone) == 2
    assert all(map(math.isfinite, alone))
    (_, losses, weights), (_, others, same) = two_ranks.run(_train, example, tmp_path / "two")
    assert losses == others
    assert all(map(math.isfinite, losses))
    assert all(torch.equal(*pair) for pair in zip(weights, same, strict=True))
    if name == "gradcache_train_step":  # its example has no batch norm: the same run
        assert losses == pytest.approx(alone, rel=1e-4)


def test_the_step_of_the_document_trains(tmp_path: Path) -> None:
    """Its option decides on whose loss it trains."""
    exec(compile(_codes()["symmetric_train_step"], str(DOC), "exec"), {})
    both = _symmetric(tmp_path / "half")
    one, other = (_symmetric(tmp_path / str(share), MIRRORED=share) for share in (0.0, 1.0))
    assert len(both) == 4
    assert both[0] == pytest.approx((one[0] + other[0]) / 2, rel=1e-6)
    assert one[0] != other[0]


def _symmetric(folder: Path, **options: float) -> list[float]:
    watch: Any = Watch()
    step = {"TRAIN_STEP_NAME": "symmetric_train_step", "symmetric_train_step": options}
    loop.run(make_task(folder, [watch], TRAINER=step, OPTIMIZER__num_epochs=1))
    assert all(map(math.isfinite, watch.losses))
    losses: list[float] = watch.losses
    return losses


def test_a_function_gets_its_arguments_from_yaml(tmp_path: Path) -> None:
    given = []

    @register_train_step("weighted_train_step")
    def step(task: Any, weight: float = 1.0) -> Any:
        given.append(weight)
        return task

    trainer = {"TRAIN_STEP_NAME": "weighted_train_step", "weighted_train_step": {"weight": 0.5}}
    make_task(tmp_path, [], TRAINER=trainer).parts.train_step_function(None)
    assert given == [0.5]


def _without(stage: str) -> Any:
    """Return a train step that leaves a stage out."""
    return type("PartOfAStep", (TrainStep,), {stage: lambda *_: None})


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("record", "TRAIN_STEP_NAME: part_of_a_step recorded no loss: call TrainStep.record"),
        ("backward", "the first optimizer step finds no gradient: .*TrainStep.backward"),
        ("update", "TRAIN_STEP_NAME: part_of_a_step made no optimizer step: call TrainStep.update"),
    ],
)
def test_a_step_that_does_not_train_is_an_error(
    tmp_path: Path, left_out: str, message: str, accumulate: int
) -> None:
    trainer = {"TRAIN_STEP_NAME": "part_of_a_step"}
    with as_before(TRAIN_STEPS):
        register_train_step("part_of_a_step")(_without(left_out))
        task = make_task(tmp_path, [], TRAINER=trainer, OPTIMIZER__accumulate=accumulate)
    with pytest.raises(TrainingError, match=message):
        loop.run(task)
    assert task.iteration < accumulate


def test_a_function_is_a_step_and_may_return_nothing(tmp_path: Path) -> None:
    def step(task: Any) -> None:
        TrainStep()(task)

    with as_before(TRAIN_STEPS):
        register_train_step("whole_step")(step)
        task = make_task(tmp_path, [], TRAINER={"TRAIN_STEP_NAME": "whole_step"})
    loop.run(task)
    assert task.num_updates == task.iteration > 0
