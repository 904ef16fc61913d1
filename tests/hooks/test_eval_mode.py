from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.checkpoint.options import CheckpointOptions
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.engine.checkpointing import SaveCheckpoints
from sslengine.engine.services import Services
from sslengine.engines.train import train as train_engine
from sslengine.hooks import eval_mode
from sslengine.hooks.default import default_hooks
from sslengine.hooks.eval_mode import PreciseBatchNorm, refresh
from sslengine.hooks.events import Hook
from sslengine.python.fit import PythonTask
from tests.config.recipes import resolved
from tests.engine.runs import Stop, Watch, make_task, same, train, weights
from tests.engine.tasks import begin
from tests.engine.test_task import SUPERVISED, SYNC_BN, WITH_TEST
from tests.engines.runs import PowerCut, make_run
from tests.engines.test_train import _assert_same_state, _final, _losses
from tests.ranks import RankPool
from tests.tail import slow_but

# Heads with batch norm and dropout: something to compute, and something that draws.
DROPOUT = {
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 8, 8], "use_dropout": True, "use_bn": True}]]
}
ON = {"HOOKS__PRECISE_BN": {"ENABLED": True, "NUM_ITERS": 6}}


def _saves(folder: Path, **options: Any) -> Services:
    return Services(checkpoints=SaveCheckpoints(folder, CheckpointOptions(**options)))


class Keep(Hook):
    """A copy of the model at the end of the first train phase."""

    model: Any = None

    def on_phase_end(self, task: Any) -> None:
        if self.model is None:
            self.model = copy.deepcopy(task.base_model)


def _norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def test_it_is_the_mean_and_variance_of_the_batches(tmp_path: Path) -> None:
    """By fvcore for every layer, and for the first one by all that it was given at once."""
    from fvcore.nn.precise_bn import update_bn_stats  # its import warns, which ranks do not bear

    before, after = Keep(), Keep()
    train(tmp_path, [before, PreciseBatchNorm(6), after], _saves(tmp_path), OPTIMIZER__num_epochs=1)
    feed = make_task(tmp_path, []).train_feed
    assert feed is not None
    # Six batches of epochs of four.
    batches = [batch["data"][0] for batch in [*feed.batches(-1), *feed.batches(-2, 0, 2)]]
    feed.close()
    model = before.model.train()
    update_bn_stats(model, batches, num_iters=6)
    ours, theirs = _norms(after.model), _norms(model)
    assert len(ours) == len(theirs) > 5
    for one, two in zip(ours, theirs):
        torch.testing.assert_close(one.running_mean, two.running_mean, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(one.running_var, two.running_var, rtol=1e-4, atol=1e-6)
    first = next(module for module in model.trunk.modules() if isinstance(module, nn.Conv2d))
    values = torch.cat([first(batch) for batch in batches]).detach().transpose(0, 1).flatten(1)
    torch.testing.assert_close(ours[0].running_mean, values.mean(1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        ours[0].running_var, values.var(1, correction=0), rtol=1e-4, atol=1e-6
    )


def test_a_layer_that_is_used_twice_counts_all_that_it_was_given() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.once = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
            self.unused = nn.BatchNorm1d(2)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.once(torch.cat([self.norm(x[:3]), self.norm(10 * x[3:])]))

    batches = [torch.randn(5, 2), torch.randn(7, 2)]
    task = _begin(model := Twice(), batches)
    refresh(task, 2)
    given = torch.cat([*(x[:3] for x in batches), *(10 * x[3:] for x in batches)])
    assert model.norm.running_mean is not None
    assert model.norm.running_var is not None
    torch.testing.assert_close(model.norm.running_mean, given.mean(0))
    torch.testing.assert_close(model.norm.running_var, given.var(0, correction=0))
    assert model.unused.running_var is not None
    assert model.unused.running_var.tolist() == [1, 1]
    assert model.calls.item() == 0  # other buffers are as they were
    assert model.norm.num_batches_tracked is not None
    assert model.norm.num_batches_tracked.item() == 0
    assert model.norm.momentum == 0.1


def _begin(model: nn.Module, inputs: list[Tensor]) -> PythonTask:
    """A task whose model has not moved: its first step looks at the batch, and fails."""

    def loss(output: Tensor, target: Any) -> Tensor:
        raise Stop

    task = begin([{"data": each} for each in inputs], model, loss)
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with pytest.raises(Stop):
        task.step()
    for buffer, before in buffers:
        buffer.copy_(before)
    return task


def test_it_moves_no_weight_and_no_random_stream(tmp_path: Path) -> None:
    plain, precise = Watch(), Watch()
    one = train(tmp_path, [plain], **DROPOUT)
    two = train(tmp_path, [precise, PreciseBatchNorm(3)], _saves(tmp_path), **DROPOUT)
    assert precise.losses == plain.losses
    assert precise.samples == plain.samples
    after = weights(two)
    moved = {name for name, value in weights(one).items() if not torch.equal(value, after[name])}
    assert moved == {name for name in weights(one) if "running_" in name}


@pytest.mark.parametrize("cut_after", slow_but([3], [3, 6]))
def test_a_run_goes_on_bit_by_bit(tmp_path: Path, cut_after: int) -> None:
    changes: dict[str, Any] = {
        **DROPOUT, **ON, "LOG_FREQUENCY": 1, "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 1,
        "DATA__NUM_DATALOADER_WORKERS": 1,
    }  # fmt: skip
    never = {"HOOKS__EXTRA": [{"name": "test_power_cut", "after": 99}]}
    train_engine(make_run(tmp_path / "whole", **changes, **never))
    cut = {"HOOKS__EXTRA": [{"name": "test_power_cut", "after": cut_after}]}
    with pytest.raises(PowerCut):
        train_engine(make_run(tmp_path / "cut", **changes, **cut))
    train_engine(make_run(tmp_path / "cut", **changes, **never))
    assert _losses(tmp_path / "cut") == _losses(tmp_path / "whole")
    _assert_same_state(_final(tmp_path / "cut"), _final(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        # The last checkpoint, and every second.
        ({}, {"CHECKPOINT_FREQUENCY": 2}, [8, 12]),
        # Before tests, also within an epoch; step 4 ends the first epoch and no more.
        (
            {**SUPERVISED, **WITH_TEST, "TEST_EVERY_NUM_ITERATIONS": 3},
            {"CHECKPOINT_FREQUENCY": -1},
            [3, 6, 9, 12],
        ),
    ],
)
def test_before_tests_and_checkpoints(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    options: dict[str, Any],
    expected: list[int],
) -> None:
    at = []
    monkeypatch.setattr(eval_mode, "refresh", lambda task, batches: at.append(task.iteration))
    train(
        tmp_path,
        [PreciseBatchNorm(2)],
        _saves(tmp_path, **options),
        **changes,
        OPTIMIZER__num_epochs=3,
    )
    assert at == expected


# ---- several ranks


def _run_on_ranks(folder: Path) -> dict[str, Tensor]:
    changes = {
        "DISTRIBUTED__NUM_PROC_PER_NODE": world_size(),
        "OPTIMIZER__num_epochs": 1,
        "OPTIMIZER__param_schedulers__lr__start_value": 0.0,  # statistics alone are compared
        "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 8 // world_size(),
        **SYNC_BN,
    }
    folder = folder / str(rank())
    task = train(folder, [PreciseBatchNorm(3)], _saves(folder), **changes)
    return {name: value for name, value in weights(task).items() if "running_" in name}


def test_two_ranks_have_what_one_has(two_ranks: RankPool, tmp_path: Path) -> None:
    alone = _run_on_ranks(tmp_path / "one")
    first, second = two_ranks.run(_run_on_ranks, tmp_path)
    assert same(first, second)
    for name, value in alone.items():
        torch.testing.assert_close(first[name], value, rtol=1e-4, atol=1e-6)


# As VISSL's robustness_out_of_distribution/datasets/imagenet_r: labels of some of the classes.
SOME: dict[str, Any] = {
    **SUPERVISED, **WITH_TEST, "TEST_ONLY": True, "METERS__model_output_mask": True,
    "METERS__accuracy_list_meter": {"topk_values": [1, 2]},
    "DATA__TEST__RANDOM_SYNTHETIC_LABELS": 2,
}  # fmt: skip


@pytest.mark.parametrize("first", [[], [{"name": "OneHotEncode", "num_classes": 3}]])
def test_a_class_without_a_label_is_never_predicted(tmp_path: Path, first: list[Any]) -> None:
    changes = SOME | {"DATA__TEST__TRANSFORMS": [*first, {"name": "ToTensor"}]}
    task = make_task(tmp_path, default_hooks(resolved(**changes).config, tmp_path), **changes)
    with torch.no_grad():
        *_, bias = task.base_model.heads.parameters()
        bias.copy_(torch.tensor([0.0, 0.0, 100.0]))  # it would always be predicted
    loop.run(task)
    found = task.phase_results
    assert found["accuracy_list_meter"]["top_2"] == {"0": 100.0}
    assert 0 < found["accuracy_list_meter"]["top_1"]["0"] < 100
    assert found["loss"] < 10
