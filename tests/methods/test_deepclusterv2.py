"""DeepCluster v2 against its equation, and its clusters against one process with all images."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from sslengine.config.facts import RunFacts
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.sharding import local, whole
from sslengine.losses.kmeans import spherical_kmeans
from sslengine.methods.deepclusterv2 import (
    NO_CLUSTER,
    ClusteredMemory,
    DeepClusterLoss,
    DeepClusterOptions,
)
from sslengine.methods.step import Step
from tests.engine.runs import Watch, make_task, train
from tests.engine.sharded import on_ranks
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.ranks import RankPool
from tests.tail import slow_but

SAMPLES, DIM, CROPS = 11, 4, 3
CLUSTERS = [5, 3]


def _unit(number: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(number, DIM, generator=generator, dtype=torch.float64), dim=1)


def _loss(
    remembered: tuple[int, ...] = (0, 2),
    temperature: float = 0.1,
    sharded: bool = False,
    seed: int = 0,
) -> DeepClusterLoss:
    """With centroids and clusters as k-means might leave them; samples 3 and 8 have none."""
    options = DeepClusterOptions(
        num_crops=CROPS, temperature=temperature, num_clusters=CLUSTERS,
        memory_params=ClusteredMemory(list(remembered), DIM, sharded),
    )  # fmt: skip
    loss = DeepClusterLoss(options, RunFacts(num_train_samples=SAMPLES, seed=seed)).double()
    generator = torch.Generator().manual_seed(7)
    for division, clusters in enumerate(CLUSTERS):
        loss.centroids(division).copy_(_unit(clusters, division))
        drawn = torch.randint(clusters, (SAMPLES,), generator=generator)
        loss.assignments[division] = drawn
    loss.assignments[:, [3, 8]] = NO_CLUSTER
    return loss


def equation(embeddings: Tensor, target: list[int], temperature: float) -> Tensor:
    """Crop by crop and division by division."""
    given = _loss()
    losses = []
    for division in range(len(CLUSTERS)):
        for row, sample in zip(embeddings, target, strict=True):
            cluster = int(given.assignments[division, sample])
            if cluster == NO_CLUSTER:
                continue
            z = row / row.norm()
            scores = torch.stack([z @ c / temperature for c in given.centroids(division)])
            losses.append(torch.logsumexp(scores, 0) - scores[cluster])
    return sum(losses, torch.zeros((), dtype=torch.float64)) / max(1, len(losses))


def _embeddings(images: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(CROPS * images, DIM, generator=generator, dtype=torch.float64)


@given(
    target=st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=6),
    temperature=st.sampled_from([1e-3, 0.1, 1.0, 50.0]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient(target: list[int], temperature: float, seed: int) -> None:
    ours = _embeddings(len(target), seed).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    loss = _loss(temperature=temperature)(ours, torch.tensor(target * CROPS))
    expected = equation(theirs, target * CROPS, temperature)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    if expected.requires_grad:
        expected.backward()
    grad = torch.zeros_like(ours) if theirs.grad is None else theirs.grad
    torch.testing.assert_close(ours.grad, grad, rtol=1e-7, atol=1e-12 / temperature)


# ---- the memory


def test_rows_are_overwritten_by_the_crops_that_are_remembered() -> None:
    loss = _loss(remembered=(2, 0))
    embeddings = _embeddings(3, 0)
    loss(embeddings, torch.tensor([9, 3, 0] * CROPS))
    crops = F.normalize(embeddings, dim=1).reshape(CROPS, 3, DIM)
    for place, sample in enumerate([9, 3, 0]):
        assert torch.equal(loss.memory[sample], crops[[2, 0], place])
    assert loss.filled.nonzero().flatten().tolist() == [0, 3, 9]
    assert loss.memory[~loss.filled].abs().sum() == 0


def test_evaluation_moves_nothing() -> None:
    loss = _loss().eval()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    assert torch.isfinite(loss(_embeddings(3, 0), torch.tensor([9, 3, 0] * CROPS)))
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


# ---- the clusters


def _fill(loss: DeepClusterLoss, images: int = SAMPLES) -> Tensor:
    """(images, crops, D) into the last rows; each rank brings its share, in an order of its own."""
    values = F.normalize(_unit(images * 2, 5).reshape(images, 2, DIM), dim=2)
    rows = torch.arange(SAMPLES - images, SAMPLES).tensor_split(world_size())[rank()]
    shares = values.tensor_split(world_size())[rank()]
    with torch.no_grad():
        loss.store(shares.flip(0), rows.flip(0))
    return values


def _clustered(images: int, sharded: bool = False) -> DeepClusterLoss:
    loss = _loss(sharded=sharded)
    _fill(loss, images)
    torch.manual_seed(rank())  # nothing may come from here
    before = torch.get_rng_state()
    loss.cluster(torch.Generator().manual_seed(4))
    assert torch.equal(torch.get_rng_state(), before)
    return loss


@pytest.mark.parametrize("images", [SAMPLES, 7])
def test_each_division_clusters_the_next_of_the_crops(images: int) -> None:
    loss = _clustered(images)
    values = _fill(_loss(), images)
    generator = torch.Generator().manual_seed(4)
    for division, clusters in enumerate(CLUSTERS):
        crop = values[:, division]
        start = crop[torch.randperm(images, generator=generator)[:clusters]]
        expected = spherical_kmeans(crop, start, 10)
        assert torch.equal(loss.centroids(division), expected.centroids)
        without = [NO_CLUSTER] * (SAMPLES - images)
        assert loss.assignments[division].tolist() == without + expected.assignments.tolist()


def test_more_clusters_than_images_leave_some_empty(caplog: pytest.LogCaptureFixture) -> None:
    loss = _clustered(3)
    assert loss.assignments[0, -3:].unique().tolist() == [0, 1, 2]
    assert torch.isfinite(loss.centroids(0)).all()
    DeepClusterLoss(DeepClusterOptions(num_clusters=[12]), RunFacts(num_train_samples=11))
    assert "12 clusters of 11 images" in caplog.text


# ---- several ranks: a linear model under DDP, each rank with its share of the images

PIXELS = 5
# 3 and 8 have no cluster: ranks count differently. 6 comes twice.
TARGET = [3, 6, 8, 2, 6, 9, 0, 10]


def _images() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(CROPS, len(TARGET), PIXELS, generator=generator, dtype=torch.float64)


def _model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(PIXELS, DIM).double()


def _on_this_rank() -> tuple[float, Tensor, Tensor, Tensor]:
    """(loss, DDP's gradient, own gradient over the ranks, memory)"""
    share = _images().chunk(world_size(), dim=1)[rank()].reshape(-1, PIXELS)
    target = torch.tensor(TARGET).chunk(world_size())[rank()].repeat(CROPS)
    plain = _model()
    loss = _loss()
    value = loss(plain(share), target)
    value.backward()
    wrapped = DistributedDataParallel(_model())
    _loss()(wrapped(share), target).backward()
    own = plain.weight.grad / world_size()
    return value.item(), wrapped.module.weight.grad, own, loss.memory


@pytest.mark.parametrize("pool", slow_but([2], [2, 4]), indirect=True)
def test_ranks_together_equal_one_process_with_the_whole_batch(pool: RankPool) -> None:
    model = _model()
    embeddings = model(_images().reshape(-1, PIXELS))
    expected = equation(embeddings, TARGET * CROPS, 0.1)
    expected.backward()
    alone = _loss()
    alone(embeddings, torch.tensor(TARGET * CROPS))
    results = pool.run(_on_this_rank)
    assert sum(each[0] for each in results) / pool.world_size == pytest.approx(
        expected.item(), rel=1e-9
    )
    for _, by_ddp, _, memory in results:
        torch.testing.assert_close(by_ddp, model.weight.grad, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(memory, alone.memory, rtol=1e-12, atol=1e-12)
    summed = torch.stack([each[2] for each in results]).sum(dim=0)
    torch.testing.assert_close(summed, model.weight.grad, rtol=1e-8, atol=1e-12)


def _state_when_clustered(images: int, sharded: bool = False) -> dict[str, Tensor]:
    state = _clustered(images, sharded).state_dict()
    return {name: whole(each) for name, each in state.items()}


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "shared out"])
@pytest.mark.parametrize("images", [SAMPLES, 7])
@pytest.mark.parametrize("pool", slow_but([2], [2, 4]), indirect=True)
def test_ranks_together_find_the_clusters_of_one(
    pool: RankPool, images: int, sharded: bool
) -> None:
    """11 and 7 images: ranks cannot share them evenly."""
    expected = _state_when_clustered(images)
    for state in pool.run(_state_when_clustered, images, sharded):
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-12)


# ---- whole runs

RUN: dict[str, Any] = {
    "DATA__TRAIN__TRANSFORMS": [
        {"name": "ImgPilToMultiCrop", "total_num_crops": 3, "num_crops": [2, 1],
         "size_crops": [8, 6], "crop_scales": [[0.3, 1], [0.1, 0.5]]},
        {"name": "ToTensor"},
    ],
    "DATA__TRAIN__COLLATE_FUNCTION": "multicrop_collator",
    "LOSS": {
        "name": "deepclusterv2_loss",
        "deepclusterv2_loss": {
            "num_clusters": [5, 4],
            "kmeans_iters": 3,
            "memory_params": {"crops_for_mb": [0, 2], "embedding_dim": 8},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("after", [3, 4], ids=["in mid-epoch", "between epochs"])
def test_a_run_goes_on_bit_by_bit(after: int, tmp_path: Path) -> None:
    assert_goes_on_bit_by_bit(tmp_path, after=after, **RUN)


def _state_of_two(folder: Path) -> Any:
    task = train(folder, [], **RUN, DISTRIBUTED__NUM_PROC_PER_NODE=2, OPTIMIZER__num_epochs=1,
                 DATA__TRAIN__BATCHSIZE_PER_REPLICA=2)  # fmt: skip
    return task.get_classy_state(deep_copy=True)


def test_another_number_of_ranks_goes_on_with_the_same_memory(
    two_ranks: RankPool, tmp_path: Path
) -> None:
    state, _ = two_ranks.run(_state_of_two, tmp_path)
    task = make_task(tmp_path, [], **RUN)
    task.set_classy_state(state)
    assert torch.equal(task.loss.memory, state["loss"]["memory"])
    assert task.loss.filled.all()


def _state_and_losses(folder: Path, sharded: bool) -> tuple[dict[str, Tensor], list[float], int]:
    run = copy.deepcopy(RUN)
    run["LOSS"]["deepclusterv2_loss"]["memory_params"]["sharded"] = sharded
    watch = Watch()
    task = train(folder, [watch], **on_ranks(run, world_size()))
    held = local(task.loss.memory).shape[0]
    return {n: whole(each) for n, each in task.loss.state_dict().items()}, watch.losses, held


def test_a_memory_shared_out_is_the_same_run_to_the_bit(
    two_ranks: RankPool, tmp_path: Path
) -> None:
    ones = two_ranks.run(_state_and_losses, tmp_path / "whole", False)
    others = two_ranks.run(_state_and_losses, tmp_path / "shared", True)
    for (one, losses, _), (two, same, held) in zip(ones, others, strict=True):
        assert losses == same
        assert all(torch.equal(one[name], two[name]) for name in one)
        assert held == len(one["memory"]) / 2


def test_the_memory_is_filled_before_the_first_phase(tmp_path: Path) -> None:
    """By crops of an epoch that is never trained on, with batch norms in training mode."""
    task = make_task(tmp_path, [], **RUN)
    twin = make_task(tmp_path, [], **RUN)
    task.start_phase()
    assert task.loss.filled.all()
    twin.base_model.train()
    for batch in twin.train_feed.batches(epoch=2):  # epochs 0 and 1 are trained
        first, _, third = batch["data"][0]
        with torch.no_grad():
            (embeddings,) = twin.base_model([first, third])
        expected = F.normalize(embeddings, dim=1).reshape(2, 4, 8).transpose(0, 1)
        stored = task.loss.memory[batch["label"][0][:4]]
        torch.testing.assert_close(stored, expected)
    assert all(p.grad is None for p in task.base_model.parameters())


def test_a_run_that_goes_on_does_not_fill_it_again(tmp_path: Path) -> None:
    task = make_task(tmp_path, [], **RUN)
    task.start_phase()
    before = task.loss.memory.clone()
    for parameter in task.base_model.parameters():
        parameter.data.add_(1.0)
    task.start_phase()
    assert torch.equal(task.loss.memory, before)


def test_each_phase_starts_at_other_images() -> None:
    def centroids(phase: int, seed: int) -> Tensor:
        loss = _loss(seed=seed)
        loss.options.kmeans_iters = 0
        _fill(loss)
        loss.before_phase(Step.alone(phase=phase))
        return loss.centroids(0)

    assert torch.equal(centroids(0, 0), centroids(0, 0))
    assert not torch.equal(centroids(0, 0), centroids(1, 0))
    assert not torch.equal(centroids(0, 0), centroids(0, 1))


# ---- what a user can get wrong
