"""The gradient of the whole batch, in chunks. References are plain autograd over the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.distributed.collectives import gather
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.errors import ConfigError
from sslengine.python.fit import PythonTask
from tests.engine.runs import Watch, make_task
from tests.engine.tasks import Seen, at, begin
from tests.ranks import RankPool

BATCH = 10


class Net(nn.Module):
    """As the engine's model: a list of outputs, each row from its own image."""

    def __init__(self, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4) if norm else nn.Identity(), nn.ReLU()]
        self.trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(4, 6)
        self.seen: list[tuple[int, bool]] = []
        self.double()

    def forward(self, images: Tensor | list[Tensor]) -> list[Tensor]:
        if isinstance(images, list):
            return [torch.cat([self(each)[0] for each in images])]
        self.seen.append((len(images), torch.is_grad_enabled()))
        return [self.head(self.drop(self.trunk(images)))]


def contrastive(output: Tensor, target: Any = None) -> Tensor:
    """Every row against every row of all ranks; half a row's number away is its positive."""
    own = F.normalize(output, dim=1)
    rows, start = gather(own)
    scores = own @ rows.T / 0.3
    number = torch.arange(len(own)) + start
    positive = (number + len(rows) // 2) % len(rows)
    return F.cross_entropy(scores, positive)


def images(seed: int = 0, count: int = BATCH, side: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, side, side, generator=generator, dtype=torch.float64)


def batch(data: Any) -> dict[str, Any]:
    return {"data": data, "label": torch.zeros(BATCH), "data_idx": torch.arange(BATCH)}


def chunks(size: int, **options: Any) -> dict[str, Any]:
    return {
        "TRAIN_STEP_NAME": "gradcache_train_step",
        "gradcache_train_step": {"CHUNK_SIZE": size, **options},
    }


def step(model: nn.Module, data: Any, chunk: int, loss: Callable[..., Any] = contrastive,
         *hooks: Any, **options: Any) -> PythonTask:  # fmt: skip
    task = begin([batch(data)], model, loss, *hooks, TRAINER=chunks(chunk, **options))
    task.step()
    return task


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 5, 10, 99])
def test_it_is_the_gradient_of_the_whole_batch(chunk: int) -> None:
    plain, ours = Net(), Net()
    loss = contrastive(plain(images())[0])
    loss.backward()
    task = step(ours, images(), chunk, contrastive, seen := Seen())
    same(gradients(ours), gradients(plain))
    assert task.last_batch.loss == pytest.approx(loss.item(), rel=1e-12)
    assert seen.events == ["on_forward", "on_loss_and_meter", "on_backward", "on_update"]


def test_no_graph_is_larger_than_a_chunk() -> None:
    """Only what the forward pass keeps of a chunk is its images: each runs again in backward."""
    model = Net()
    step(model, images(), 4)
    assert [size for size, _ in model.seen] == [4, 4, 2, 2, 4, 4]


def test_crops_of_several_sizes() -> None:
    crops = [images(0), images(1), images(2, side=4)]
    plain, ours = Net(), Net()
    contrastive(plain(crops)[0]).backward()
    step(ours, crops, 4)
    same(gradients(ours), gradients(plain))


def test_dropout_draws_the_same_numbers_in_both_passes_and_moves_its_stream_once() -> None:
    plain, ours = Net(dropout=0.5), Net(dropout=0.5)
    torch.manual_seed(5)
    contrastive(torch.cat([plain(chunk)[0] for chunk in images().split(3)])).backward()
    stream = torch.get_rng_state()
    step(ours, images(), 3, contrastive, at("on_step_start", lambda task: torch.manual_seed(5)))
    same(gradients(ours), gradients(plain))
    assert torch.equal(torch.get_rng_state(), stream)


def test_batch_norm_is_refused_unless_it_is_frozen_or_chunks_are_accepted() -> None:
    model = Net(norm=True)
    with pytest.raises(ConfigError, match=r"trunk\.1 is a batch norm in training mode") as error:
        step(model, images(), 5)
    assert "config.TRAINER.gradcache_train_step.CHUNK_STATISTICS=true" in str(error.value)
    frozen, plain = Net(norm=True), Net(norm=True)
    plain.trunk[1].eval()
    contrastive(plain(images())[0]).backward()
    freeze = at("on_step_start", lambda task: task.base_model.trunk[1].eval())
    step(frozen, images(), 5, contrastive, freeze)
    same(gradients(frozen), gradients(plain))


def test_what_a_hook_puts_in_place_of_the_output_gets_the_gradient() -> None:
    def double(task: Any) -> None:
        task.last_batch.model_output = 2 * task.last_batch.model_output

    def loss(output: Tensor, target: Any = None) -> Tensor:
        return output.square().sum()

    plain, ours = Net(), Net()
    loss(2 * plain(images())[0]).backward()
    step(ours, images(), 3, loss, at("on_forward", double))
    same(gradients(ours), gradients(plain))


def _on_ranks(by_hand: bool, accumulated: int) -> list[Tensor]:
    share, model = BATCH // world_size(), Net()
    mine = [images(n)[rank() * share : (rank() + 1) * share] for n in range(accumulated)]
    task = begin(
        [{"data": each} for each in mine], model, contrastive, TRAINER=chunks(2),
        OPTIMIZER__accumulate=accumulated, DISTRIBUTED__NUM_PROC_PER_NODE=world_size(),
        DISTRIBUTED__MANUAL_GRADIENT_REDUCTION=by_hand,
    )  # fmt: skip
    for _ in mine:
        task.step()
    return gradients(model)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_on_two_ranks_it_is_the_gradient_of_all_their_images(
    two_ranks: RankPool, by_hand: bool, accumulated: int
) -> None:
    plain = Net()
    for number in range(accumulated):
        (contrastive(plain(images(number))[0]) / accumulated).backward()
    for ours in two_ranks.run(_on_ranks, by_hand, accumulated):
        same(ours, gradients(plain))


VIT: dict[str, Any] = {
    "MODEL__TRUNK": {
        "NAME": "vision_transformer",
        "VISION_TRANSFORMERS": {
            "IMAGE_SIZE": 8, "PATCH_SIZE": 4, "NUM_LAYERS": 1, "NUM_HEADS": 2, "HIDDEN_DIM": 16,
            "MLP_DIM": 32, "CLASSIFIER": "token",
        },
    },
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": [16, 8]}]],
}  # fmt: skip


def test_by_its_name_in_yaml_it_makes_the_run_of_the_standard_step(tmp_path: Path) -> None:
    losses = {}
    for name in ("standard_train_step", "gradcache_train_step"):
        trainer: dict[str, Any] = {"TRAIN_STEP_NAME": name}
        if name == "gradcache_train_step":
            trainer[name] = {"CHUNK_SIZE": 3}
        watch = Watch()
        loop.run(make_task(tmp_path / name, [watch], TRAINER=trainer, **VIT))
        losses[name] = watch.losses
    assert len(losses["standard_train_step"]) == 8
    # In float32 the two round differently, and training makes more of it from step to step.
    ours, theirs = losses["gradcache_train_step"][:4], losses["standard_train_step"][:4]
    assert ours == pytest.approx(theirs, rel=1e-4)
