"""SwAV against the paper: codes and loss by plain loops, the queue step by step, 1, 2 and 4 ranks."""

from __future__ import annotations

import math
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
from sslengine.errors import ConfigError, TrainingError
from sslengine.hooks.events import Hook
from sslengine.hooks.gradients import FreezeParameters
from sslengine.methods.step import Step
from sslengine.methods.swav import SwAVHead, SwAVLoss, SwAVOptions, SwAVQueueOptions
from tests.engine.runs import Watch, make_task, train
from tests.losses.test_sinkhorn import by_the_paper as codes_by_the_paper
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.ranks import RankPool
from tests.tail import slow_but


def by_the_paper(
    scores: Tensor, options: SwAVOptions, earlier: Tensor | None = None, hard: bool = False
) -> Tensor:
    """Of one set of prototypes. scores (V * B, K); earlier (A, L, K): scores of the queue."""
    crops = scores.reshape(options.num_crops, -1, scores.shape[-1])
    images, prototypes = crops.shape[1], scores.shape[-1]
    shares = [1 / (k + 1) ** options.shk_powerlaw for k in range(prototypes)]
    shares = [each / sum(shares) for each in shares]
    terms = []
    for a, source in enumerate(options.crops_for_assign):
        rows = crops[source].tolist() + (earlier[a].tolist() if earlier is not None else [])
        codes = codes_by_the_paper(rows, options.epsilon, options.num_iters, shares)[:images]
        for v in range(len(crops)):
            for b in range(images if v != source else 0):
                logits = crops[v, b] / options.temperature
                log_p = logits - torch.logsumexp(logits, 0)
                best = int(codes[b].argmax())
                terms.append(-log_p[best] if hard else -(codes[b] * log_p).sum())
    return torch.stack(terms).mean()


def _options(**changes: Any) -> SwAVOptions:
    return SwAVOptions(**{"num_prototypes": [3], "embedding_dim": 4, **changes})


def _value(loss: SwAVLoss, output: Any, **at: Any) -> Tensor:
    return loss(output, {}, Step.alone(**at))


def _loss(**changes: Any) -> SwAVLoss:
    return SwAVLoss(_options(**changes), RunFacts())


def _scores(rows: int, prototypes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(rows, prototypes, generator=generator, dtype=torch.float64) - 1


def _embeddings(rows: int, seed: int) -> Tensor:
    return F.normalize(_scores(rows, 4, seed), dim=1)


@given(
    crops=st.integers(2, 5),
    images=st.integers(1, 5),
    sets=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    temperature=st.sampled_from([1e-3, 0.1, 1.0, 50.0]),
    epsilon=st.sampled_from([0.03, 0.05, 0.5]),
    num_iters=st.integers(0, 4),
    power=st.sampled_from([0.0, 0.25]),
    hard=st.booleans(),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
def test_value_and_gradient(
    crops: int, images: int, sets: list[int], temperature: float, epsilon: float, num_iters: int,
    power: float, hard: bool, seed: int, data: st.DataObject,
) -> None:  # fmt: skip
    options = _options(
        num_crops=crops, num_prototypes=sets, temperature=temperature, epsilon=epsilon,
        num_iters=num_iters, shk_powerlaw=power, temp_hard_assignment_iters=int(hard),
        crops_for_assign=data.draw(st.lists(st.integers(0, crops - 1), min_size=1, unique=True)),
    )  # fmt: skip
    ours = [_scores(crops * images, k, seed + k).requires_grad_() for k in sets]
    theirs = [each.detach().clone().requires_grad_() for each in ours]
    loss = _value(SwAVLoss(options, RunFacts()), [_embeddings(crops * images, seed), *ours])
    expected = torch.stack([by_the_paper(each, options, hard=hard) for each in theirs]).mean()
    loss.backward()
    expected.backward()
    rounding = 1e-13 / temperature
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=rounding + 1e-12)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-7, atol=rounding + 1e-12)


def test_single_precision_stays_finite_where_exp_does_not() -> None:
    scores = _scores(12, 3, 0).float().requires_grad_()
    loss = _value(_loss(epsilon=1e-3, temperature=5e-4), [_embeddings(12, 0).float(), scores])
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(scores.grad).all()


def test_double_precision_on_request() -> None:
    """To the last bit of the float32 that comes out; single precision is not that near."""
    changes = {"temperature": 1e-3, "epsilon": 1e-2}
    double = _loss(use_double_precision=True, **changes)
    exact = 0
    for seed in range(20):
        scores, embeddings = _scores(12, 3, seed).float(), _embeddings(12, seed).float()
        expected = by_the_paper(scores.double(), double.options).float()
        scores.requires_grad_()
        loss = _value(double, [embeddings, scores])
        loss.backward()
        assert loss.dtype == scores.grad.dtype == torch.float32
        assert loss.item() == expected.item()
        exact += int(_value(_loss(**changes), [embeddings, scores]).item() == expected.item())
    assert exact < 20


def test_as_an_independent_implementation() -> None:
    lightly = pytest.importorskip("lightly.loss")
    theirs = lightly.SwaVLoss(temperature=0.2, sinkhorn_iterations=3, sinkhorn_epsilon=0.05)
    scores = _scores(5 * 6, 7, 0)
    crops = list(scores.chunk(5))
    ours = _loss(num_crops=5, num_prototypes=[7], temperature=0.2)
    torch.testing.assert_close(
        _value(ours, [_embeddings(30, 0), scores]), theirs(crops[:2], crops[2:]).squeeze()
    )


# ---- the queue


def _with_queue(head: nn.Module, length: int, start: int, **changes: Any) -> SwAVLoss:
    loss = _loss(queue=SwAVQueueOptions(length, start), **changes).double()
    loss.attach(head)
    return loss


def _head(sets: list[int], seed: int = 0) -> SwAVHead:
    torch.manual_seed(seed)
    return SwAVHead([5, 6, 4], use_bn=False, num_clusters=sets).double()


def test_the_queue_step_by_step() -> None:
    """Newest first, first in first out; scored with the prototypes of the day; from start_iter."""
    head, images, length = _head([3, 2]), 3, 7
    loss = _with_queue(head, length, start=2, num_prototypes=[3, 2], num_crops=3)
    seen: list[list[Tensor]] = [[], []]
    for step in range(6):
        output = head(_scores(3 * images, 5, seed=step))
        losses = []
        for index, prototypes in enumerate([head.prototypes0, head.prototypes1]):
            earlier = None
            if step >= 2:
                earlier = torch.stack(
                    [torch.stack([prototypes.weight @ z for z in rows]) for rows in seen]
                ).detach()
            losses.append(by_the_paper(output[1 + index], loss.options, earlier))
        value = _value(loss, output, iteration=step)
        torch.testing.assert_close(value, torch.stack(losses).mean(), rtol=1e-9, atol=1e-12)
        for a in (0, 1):
            rows = output[0][a * images : (a + 1) * images].detach()
            seen[a] = [*rows, *seen[a]][:length]
        with torch.no_grad():
            head.prototypes0.weight.normal_()
        loss.after_update(Step.alone())
    assert len(seen[0]) == length
    torch.testing.assert_close(loss.queue, torch.stack([torch.stack(rows) for rows in seen]))


def test_a_batch_that_is_longer_than_the_queue() -> None:
    head = _head([3])
    loss = _with_queue(head, 2, start=0)
    output = head(_scores(6, 5, seed=0))
    _value(loss, output)
    torch.testing.assert_close(loss.queue, torch.stack([output[0][:2], output[0][3:5]]))


def test_evaluation_leaves_the_queue_alone() -> None:
    head = _head([3])
    loss = _with_queue(head, 4, start=0)
    with torch.no_grad():
        _value(loss, head(_scores(6, 5, seed=0)), train=False)
    assert not loss.queue.any()


# ---- several ranks

IMAGES, CROPS = 8, 3


def _crops(step: int) -> Tensor:
    """(CROPS, IMAGES, 5): images of every rank differ in size."""
    pixels = _scores(CROPS * IMAGES, 5, seed=100 + step).view(CROPS, IMAGES, 5)
    return pixels * (1 + torch.arange(IMAGES).view(1, -1, 1))


def _train_on_rank(wrap: bool) -> tuple[list[float], list[Tensor], list[Tensor], Tensor]:
    """Losses, the gradients of the first step, weights and queue after five."""
    head = _head([3, 2])
    loss = _with_queue(head, 10, start=1, num_prototypes=[3, 2], num_crops=CROPS)
    model = DistributedDataParallel(head) if wrap else head
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    losses, first = [], []
    for step in range(5):
        share = _crops(step).chunk(world_size(), dim=1)[rank()].reshape(-1, 5)
        value = _value(loss, model(share), iteration=step)
        optimizer.zero_grad()
        value.backward()
        losses.append(value.item())
        first = first or [each.grad.clone() for each in head.parameters()]
        if not wrap and world_size() > 1:
            break
        optimizer.step()
        loss.after_update(Step.alone())
    return losses, first, [each.detach() for each in head.parameters()], loss.queue


@pytest.mark.parametrize("pool", slow_but([2], [2, 4]), indirect=True)
def test_ranks_together_equal_one_process_with_the_whole_batch(pool: RankPool) -> None:
    head = _head([3, 2])
    head.normalize_prototypes()
    _, *scores = head(_crops(0).reshape(-1, 5))
    options = _options(num_crops=CROPS)
    expected = torch.stack([by_the_paper(each, options) for each in scores]).mean()
    expected.backward()
    results = pool.run(_train_on_rank, True)
    assert sum(losses[0] for losses, *_ in results) / pool.world_size == pytest.approx(
        expected.item(), rel=1e-10
    )
    own = [first for _, first, _, _ in pool.run(_train_on_rank, False)]
    for index, parameter in enumerate(head.parameters()):
        for _, first, _, _ in results:
            torch.testing.assert_close(first[index], parameter.grad, rtol=1e-8, atol=1e-11)
        summed = torch.stack([gradients[index] for gradients in own]).sum(dim=0) / pool.world_size
        torch.testing.assert_close(summed, parameter.grad, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("pool", slow_but([2], [2, 4]), indirect=True)
def test_the_queue_over_ranks_is_that_of_one_process(pool: RankPool) -> None:
    """Ten rows on four ranks: parts of 3, 3, 2 and 2. Every rank holds all, to the bit."""
    losses, _, weights, queue = _train_on_rank(False)
    results = pool.run(_train_on_rank, True)
    mean = torch.tensor([each for each, *_ in results]).mean(dim=0)
    torch.testing.assert_close(mean, torch.tensor(losses))
    for _, _, mine, rows in results:
        torch.testing.assert_close(rows, queue, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(mine, weights, rtol=1e-8, atol=1e-10)
        assert torch.equal(rows, results[0][3])
        assert all(torch.equal(a, b) for a, b in zip(mine, results[0][2], strict=True))


# ---- the head


def test_the_head_has_vissls_names() -> None:
    head = SwAVHead([5, 6, 4], use_bn=True, num_clusters=[3, 2])
    parameters = {name: tuple(each.shape) for name, each in head.named_parameters()}
    assert parameters == {
        "projection_head.0.weight": (6, 5), "projection_head.0.bias": (6,),
        "projection_head.1.weight": (6,), "projection_head.1.bias": (6,),
        "projection_head.3.weight": (4, 6), "projection_head.3.bias": (4,),
        "prototypes0.weight": (3, 4), "prototypes1.weight": (2, 4),
    }  # fmt: skip
    embeddings, first, second = head(torch.randn(7, 5))
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(7))
    torch.testing.assert_close(first, embeddings @ head.prototypes0.weight.T)
    assert second.shape == (7, 2)
    assert torch.equal(head.eval()(torch.ones(2, 5, 1, 1))[0], head(torch.ones(2, 5))[0])


def _layers(**arguments: Any) -> list[str]:
    head = SwAVHead(**{"dims": [5, 6, 4], "use_bn": True, "num_clusters": [3], **arguments})
    return [type(each).__name__ for each in head.projection_head]


def test_the_heads_options() -> None:
    assert _layers(use_bn=False) == ["Linear", "ReLU", "Linear"]
    assert _layers(activation_name="GELU") == ["Linear", "BatchNorm1d", "GELU", "Linear"]
    assert _layers(skip_last_bn=False)[-3:] == ["Linear", "BatchNorm1d", "ReLU"]
    assert SwAVHead([5, 4], False, [3], use_bias=False).projection_head[0].bias is None
    plain = SwAVHead([5, 4], False, [3], return_embeddings=False, normalize_feats=False)
    x = torch.randn(2, 5)
    (scores,) = plain(x)
    torch.testing.assert_close(scores, plain.prototypes0(plain.projection_head(x)))


@pytest.mark.parametrize("hold", [False, True])
def test_weight_normalised_prototypes(hold: bool) -> None:
    head = SwAVHead([5, 4], False, [3], use_weight_norm_prototypes=True, normalize_last_layer=hold)
    assert {"prototypes0.weight_g", "prototypes0.weight_v"} < set(head.state_dict())
    assert head.prototypes0.weight_g.requires_grad is not hold
    with torch.no_grad():
        head.prototypes0.weight_g.fill_(3.0)
    head.normalize_prototypes()
    torch.testing.assert_close(head.prototypes0.weight.norm(dim=1), torch.ones(3))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dims": [5]}, "dims: expected two or more"),
        ({"activation_name": "Tanh"}, "activation_name: expected ReLU or GELU, got 'Tanh'"),
        ({"normalize_last_layer": True}, "set use_weight_norm_prototypes too"),
    ],
)
def test_heads_that_cannot_be(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        _layers(**arguments)


# ---- whole runs

RUN: dict[str, Any] = {
    "DATA__TRAIN__TRANSFORMS": [
        {"name": "ImgPilToMultiCrop", "total_num_crops": 4, "num_crops": [2, 2],
         "size_crops": [8, 6], "crop_scales": [[0.5, 1.0], [0.2, 0.5]]},
        {"name": "RandomHorizontalFlip"},
        {"name": "ToTensor"},
    ],
    "DATA__TRAIN__COLLATE_FUNCTION": "multicrop_collator",
    "MODEL__HEAD__PARAMS": [
        ["swav_head", {"dims": [32, 16, 8], "use_bn": True, "num_clusters": [6, 4]}]
    ],
    "LOSS__name": "swav_loss",
    "LOSS__swav_loss__queue__queue_length": 10,
    "LOSS__swav_loss__queue__start_iter": 2,
}  # fmt: skip


class Prototypes(Hook):
    """The first prototypes before training and after each step."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def on_start(self, task: Any) -> None:
        self.weights.append(task.base_model.heads[0].prototypes0.weight.detach().clone())

    on_step = on_start


def test_prototypes_have_unit_length_from_the_start_on(tmp_path: Path) -> None:
    seen = Prototypes()
    train(tmp_path, [seen], **RUN)
    assert len(seen.weights) == 9
    for each in seen.weights:
        torch.testing.assert_close(each.norm(dim=1), torch.ones(6))
    assert not torch.allclose(seen.weights[0], seen.weights[1])


def test_prototypes_wait_if_told_to(tmp_path: Path) -> None:
    seen = Prototypes()
    train(tmp_path, [FreezeParameters([("module.heads.0.prototypes0.weight", 3)]), seen], **RUN)
    start, *after = seen.weights
    for each in after[:3]:
        torch.testing.assert_close(each, start)
    assert not torch.allclose(after[3], start)


def test_initial_weights_reach_the_prototypes(tmp_path: Path) -> None:
    task = make_task(tmp_path, [], **RUN)
    with torch.no_grad():
        task.base_model.heads[0].prototypes0.weight.mul_(3.0)
    task.load_initial_weights()
    norms = task.base_model.heads[0].prototypes0.weight.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(6))


def test_mixed_views_reach_the_loss_as_multicrop_collator_has_them(tmp_path: Path) -> None:
    """As VISSL's pretrain/vision_transformer/swav: without labels, and so of one class."""
    mixed = {"ssl_method": "swav", "num_classes": 1, "cutmix_alpha": 1.0}
    watch = Watch()
    changes = {"COLLATE_FUNCTION": "cutmixup_collator", "COLLATE_FUNCTION_PARAMS": mixed,
               "LABEL_TYPE": "zero"}  # fmt: skip
    named = {f"DATA__TRAIN__{key}": each for key, each in changes.items()}
    train(tmp_path, [watch], **RUN | named)
    assert len(watch.losses) == 8
    assert all(map(math.isfinite, watch.losses))


def _cut_on_ranks(folder: Path, changes: dict[str, Any]) -> None:
    assert_goes_on_bit_by_bit(folder / str(rank()), **changes)


def test_two_ranks_go_on_bit_by_bit(two_ranks: RankPool, tmp_path: Path) -> None:
    ranks = {"DISTRIBUTED__NUM_PROC_PER_NODE": 2, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2}
    two_ranks.run(_cut_on_ranks, tmp_path, {**RUN, **ranks})


# ---- what a user can get wrong


def _facts(**changes: Any) -> RunFacts:
    head = {"dims": [32, 16, 8], "use_bn": True, "num_clusters": [6, 4]}
    facts = {"world_size": 4, "views_per_image": 5, "heads": (("swav_head", head),),
             "collator": "multicrop_collator", **changes}  # fmt: skip
    return RunFacts(**facts)


def test_options_follow_the_run() -> None:
    options = SwAVOptions(queue=SwAVQueueOptions(queue_length=3840))
    options.infer(_facts())
    assert (options.num_crops, options.embedding_dim, options.num_prototypes) == (5, 8, [6, 4])


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"heads": (("swav_head", {"return_embeddings": False}),)}, "set return_embeddings")],
)  # fmt: skip
def test_runs_that_do_not_fit(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"config.LOSS.swav_loss: .*{text}"):
        SwAVOptions().infer(_facts(**changes))


def test_outputs_that_are_not_crops_with_scores() -> None:
    embeddings, scores = _embeddings(6, 0), _scores(6, 3, 0)
    with pytest.raises(TrainingError, match="scores of one swav_head"):
        _value(_loss(), scores)
    with pytest.raises(TrainingError, match="4 views of every image"):
        _value(_loss(num_crops=4), [embeddings, scores])


def test_a_model_without_the_head() -> None:
    with pytest.raises(ConfigError, match="needs one swav_head in the model; there are 0"):
        _loss().attach(nn.Linear(2, 2))
