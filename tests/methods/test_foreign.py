"""Losses that were not written as methods: of torch, of Classy and VISSL, plain functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook
from sslengine.methods.foreign import FunctionLoss, takes_sample
from sslengine.methods.step import Step
from sslengine.models.momentum import frozen_copy
from tests.engine.runs import Watch, make_task, train
from tests.engine.sharded import SMALL_VIT, on_ranks
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.ranks import RankPool


class Plain(nn.Module):
    def forward(self, output: Tensor, target: Tensor, weight: float = 1.0) -> Tensor:
        return weight * output.square().mean()


class WithSample(nn.Module):
    def forward(self, output: Tensor, sample: Any, step: Any = None) -> Tensor:
        return output.square().mean() * (1 + 0 * len(sample["input"]))


def squares(output: Tensor, target: Tensor, factor: float = 1.0) -> Tensor:
    return factor * output.square().mean()


def squares_where(output: Tensor, sample: Any, step: Step, factor: float) -> Tensor:
    step.put("where", step.where)
    return squares(output, sample["target"], factor)


def make_squares(factor: float = 1.0) -> nn.Module:
    return FunctionLoss(lambda output, target: squares(output, target, factor))


@pytest.mark.parametrize(
    ("loss", "three"),
    [(Plain(), False), (WithSample(), True), (nn.CrossEntropyLoss(), False),
     (FunctionLoss(squares), False), (FunctionLoss(squares_where), True),
     (FunctionLoss(WithSample().forward), True), (FunctionLoss(WithSample()), True)],
)  # fmt: skip
def test_which_form_it_has(loss: nn.Module, three: bool) -> None:
    assert takes_sample(loss) is three


def _losses(folder: Path, name: str, **options: Any) -> list[float]:
    watch = Watch()
    loss = {"name": f"{__name__}:{name}", name: options}
    train(folder, [watch], **SMALL_VIT, LOSS=loss, OPTIMIZER__num_epochs=1)
    return watch.losses


def test_all_forms_train_alike(tmp_path: Path) -> None:
    expected = _losses(tmp_path, "squares", factor=2.0)
    assert _losses(tmp_path, "squares_where", factor=2.0) == expected
    assert _losses(tmp_path, "make_squares", factor=2.0) == expected
    assert _losses(tmp_path, "WithSample") == _losses(tmp_path, "Plain") != expected


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [("squares", {"fctor": 2.0}, r"squares.fctor: .* Did you mean 'factor'"),
     ("squares_where", {}, "squares_where.factor: squares_where requires this argument"),
     ("squares", {"factor": "two"}, "squares.factor: expected float, got 'two'")],
)  # fmt: skip
def test_options_of_a_function(tmp_path: Path, name: str, options: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        _losses(tmp_path, name, **options)


# ---- a method in VISSL's style: a loss with from_config, and hooks that reach into it


class QueueLoss(nn.Module):
    """The shape of VISSL's MoCo loss: its encoder is made in the first step, by the hook."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        assert config.name == "QueueLoss"
        self.config = config
        self.key: Tensor | None = None
        self.moco_encoder: nn.Module | None = None
        self.checkpoint: Any = None
        start = torch.randn(config.queue.size, config["dim"])
        self.register_buffer("queue", F.normalize(start, dim=1))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.long))

    @classmethod
    def from_config(cls, loss_config: Any) -> QueueLoss:
        return cls(loss_config)

    def forward(self, query: Tensor, *args: Any) -> Tensor:
        query = F.normalize(query, dim=1)
        logits = torch.cat([(query * self.key).sum(1, keepdim=True), query @ self.queue.T], dim=1)
        target = torch.zeros(len(query), dtype=torch.long)
        return F.cross_entropy(logits / self.config.get("temperature", 0.2), target)

    def load_state_dict(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        if self.moco_encoder is None:
            self.checkpoint = state
            return None
        return super().load_state_dict(state, *args, **kwargs)


class VisslHook(Hook):
    """on_forward as in VISSL's MoCo, on_update as in its SwAV; parts of the step in between."""

    def on_forward(self, task: Any) -> None:
        loss = task.loss
        if loss.moco_encoder is None:
            loss.moco_encoder = frozen_copy(task.base_model)
            if loss.checkpoint is not None:
                loss.load_state_dict(loss.checkpoint)
        if task.train:
            pairs = zip(task.base_model.parameters(), loss.moco_encoder.parameters(), strict=True)
            for model, moco in pairs:
                moco.data = 0.9 * moco.data + 0.1 * model.data
        with torch.no_grad():
            keys = loss.moco_encoder(task.last_batch.sample["data_momentum"])
        loss.key = F.normalize(keys[0], dim=1)

    def on_loss_and_meter(self, task: Any) -> None:
        if task.train:
            assert task.last_batch.loss.ndim == 0
            assert len(task.last_batch.model_output) == len(task.loss.key)
            rows = len(task.loss.key)
            task.loss.queue = torch.cat([task.loss.key, task.loss.queue])[:-rows].detach()

    def on_update(self, task: Any) -> None:
        task.loss.seen += len(task.last_batch.sample["data_idx"])
        with torch.no_grad():
            last = task.base_model.heads[0].clf[0].weight
            last.copy_(F.normalize(last, dim=1))


VISSL: dict[str, Any] = {
    **SMALL_VIT,
    "LOSS": {"name": f"{__name__}:QueueLoss", "QueueLoss": {"dim": 7, "queue": {"size": 16}}},
    "DATA__TRAIN__COLLATE_FUNCTION": "moco_collator",
    "HOOKS__EXTRA": [f"{__name__}:VisslHook"],
}


def _vissl_run(folder: Path) -> tuple[int, list[float], Tensor]:
    changes = on_ranks(VISSL, world_size(), 4)
    watch = Watch()
    task = train(folder / str(rank()), [VisslHook(), watch], **changes)
    rows = task.base_model.heads[0].clf[0].weight.detach()
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)))
    return int(task.loss.seen), watch.losses, rows


def test_a_method_as_hooks_in_vissls_style(tmp_path: Path, two_ranks: RankPool) -> None:
    seen, losses, _ = _vissl_run(tmp_path)
    assert seen == 2 * 16
    assert losses[-1] != losses[0]
    (one, first, rows), (_, second, other) = two_ranks.run(_vissl_run, tmp_path)
    assert one == 16
    assert first == second
    assert torch.equal(rows, other)


def test_and_goes_on_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(tmp_path / "hooks", None, **VISSL)
    assert any(type(hook) is VisslHook for hook in task.hooks)
    monkeypatch.setattr(QueueLoss, "hooks", lambda _: [VisslHook()], raising=False)
    assert_goes_on_bit_by_bit(tmp_path, **{**VISSL, "HOOKS__EXTRA": []})
