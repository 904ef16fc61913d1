"""NPID and PIRL against the equations of their papers, at 1, 2 and 4 ranks.

Negatives are random. Where a value is compared, they come from a table by the number of
the sample, so that a sample meets the same ones on whatever rank it is.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sslengine.checkpoint.options import CheckpointOptions
from sslengine.checkpoint.resume import find
from sslengine.config.facts import RunFacts
from sslengine.config.resolve import resolve
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.sharding import is_sharded, local, whole
from sslengine.errors import ConfigError
from sslengine.losses.memory import own_rows
from sslengine.methods.memory_bank import (
    MemoryBankLoss,
    MemoryBankOptions,
    MemoryOptions,
    NegativeSampling,
)
from tests.config.recipes import resolved
from tests.engine.runs import make_task
from tests.engine.sharded import on_ranks
from tests.integration.test_configs import VISSL
from tests.integration.test_sharded_resume import start
from tests.ranks import RankPool
from tests.small_runs import SMALL
from tests.tail import slow_but

SAMPLES, DRAWN, DIM = 12, 7, 4
IGNORED = -1


class FixedDraws(MemoryBankLoss):
    def _draw(self, rows: Tensor) -> Tensor:
        return _table()[rows]


def _table() -> Tensor:
    generator = torch.Generator().manual_seed(8)
    return torch.randint(SAMPLES, (SAMPLES, DRAWN), generator=generator)


def _memory() -> Tensor:
    generator = torch.Generator().manual_seed(9)
    memory = torch.randn(SAMPLES, DIM, generator=generator, dtype=torch.float64)
    return memory / memory.norm(dim=1, keepdim=True)


def _options(
    momentum: float = 0.5, every: bool = True, sharded: bool = False, **options: Any
) -> MemoryBankOptions:
    memory = MemoryOptions(
        embedding_dim=DIM, momentum=momentum, update_mem_on_forward=every, sharded=sharded
    )
    sampling = NegativeSampling(num_negatives=DRAWN)
    return MemoryBankOptions(memory_params=memory, negative_sampling_params=sampling, **options)


def _loss(**options: Any) -> FixedDraws:
    loss = FixedDraws(_options(**options), RunFacts(num_train_samples=SAMPLES)).double()
    here = slice(None) if not is_sharded(loss.memory) else own_rows(SAMPLES)
    local(loss.memory).copy_(_memory()[here])
    return loss


def paper(
    embeddings: list[Tensor],
    target: list[int],
    weights: list[float],
    temperature: float,
    z: float | None,
) -> Tensor:
    """PIRL's equation 5 of Wu's equations 6 and 7; with no z the softmax. Sample by sample."""
    losses = []
    for i, sample in enumerate(target):
        if sample == IGNORED:
            continue
        for weight, embedding in zip(weights, embeddings, strict=True):
            f = embedding[i] / embedding[i].norm()
            positive = torch.exp(_memory()[sample] @ f / temperature)
            noise = [torch.exp(_memory()[j] @ f / temperature) for j in _table()[sample]]
            if z is None:
                losses.append(-weight * torch.log(positive / (positive + sum(noise))))
                continue
            odds = DRAWN / SAMPLES  # m P_n
            tell_own = positive / z / (positive / z + odds)
            tell_noise = [odds / (each / z + odds) for each in noise]  # 1 - h; does not cancel
            losses.append(-weight * (torch.log(tell_own) + sum(map(torch.log, tell_noise))))
    counting = sum(sample != IGNORED for sample in target)
    return sum(losses, torch.zeros((), dtype=torch.float64)) / max(1, counting)


def _embeddings(number: int, images: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (images, DIM)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(number)
    ]


@given(
    target=st.lists(st.integers(IGNORED, SAMPLES - 1), min_size=1, max_size=7),
    weights=st.sampled_from([[1.0], [0.5, 0.5], [0.3, 2.0, 0.0]]),
    temperature=st.sampled_from([0.02, 0.07, 0.1, 1.0, 50.0]),
    z=st.sampled_from([None, 0.5, 10.0, 3000.0]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient(
    target: list[int], weights: list[float], temperature: float, z: float | None, seed: int
) -> None:
    """The memory moves in the forward pass: a loss or a gradient that read it afterwards
    would differ."""
    ours = _embeddings(len(weights), len(target), seed)
    theirs = [each.detach().clone().requires_grad_() for each in ours]
    kind = {"loss_type": "cross_entropy"} if z is None else {"norm_constant": z}
    loss = _loss(loss_weights=weights, temperature=temperature, **kind)
    value = loss(ours if len(ours) > 1 else ours[0], torch.tensor(target))
    expected = paper(theirs, target, weights, temperature, z)
    value.backward()
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    if expected.requires_grad:
        expected.backward()
    for mine, yours in zip(ours, theirs, strict=True):
        grad = torch.zeros_like(mine) if yours.grad is None else yours.grad
        torch.testing.assert_close(mine.grad, grad, rtol=1e-8, atol=1e-9)


def test_embeddings_may_keep_their_length() -> None:
    (embedding,) = _embeddings(1, 3, 0)
    kept = _loss(norm_embedding=False, loss_type="cross_entropy")(embedding, torch.arange(3))
    scaled = _loss(loss_type="cross_entropy")(embedding, torch.arange(3))
    unit = embedding / embedding.norm(dim=1, keepdim=True)
    again = _loss(norm_embedding=False, loss_type="cross_entropy")(unit, torch.arange(3))
    assert kept.item() != pytest.approx(scaled.item())
    assert again.item() == pytest.approx(scaled.item())


def test_single_precision_stays_finite_at_a_tiny_temperature() -> None:
    loss = _loss(temperature=1e-3).float()
    embedding = _embeddings(1, 4, 0)[0].detach().float().requires_grad_()
    for _ in range(2):
        value = loss(embedding, torch.arange(4))
        value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(embedding.grad).all()


# ---- the normalising constant


def test_z_is_estimated_by_equation_8_at_the_first_batch_and_kept() -> None:
    loss = _loss(temperature=0.5)
    (embedding,) = _embeddings(1, 3, 0)
    target = torch.tensor([4, 0, 7])
    unit = (embedding / embedding.norm(dim=1, keepdim=True)).detach()
    of_each = [
        SAMPLES / DRAWN * sum(math.exp(_memory()[j] @ unit[i] / 0.5) for j in _table()[target[i]])
        for i in range(3)
    ]
    z = sum(of_each) / 3
    value = loss(embedding, target)
    assert loss.log_partition.item() == pytest.approx(math.log(z), abs=1e-12)
    expected = paper([embedding], target.tolist(), [1.0], 0.5, z)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    loss(*_embeddings(1, 3, 1), target)
    assert loss.log_partition.item() == pytest.approx(math.log(z), abs=1e-12)


def test_a_restored_z_is_not_estimated_anew() -> None:
    one, two = _loss(), _loss()
    one(*_embeddings(1, 3, 0), torch.arange(3))
    two.load_state_dict(one.state_dict())
    (embedding,) = _embeddings(1, 3, 1)
    assert torch.equal(one(embedding, torch.arange(3)), two(embedding, torch.arange(3)))
    assert torch.equal(one.log_partition, two.log_partition)


# ---- the memory


def _moved(memory: Tensor, rows: list[int], embedding: Tensor, momentum: float) -> Tensor:
    """Of each sample of the batch in turn; all from the memory as it was, so the last counts."""
    after = memory.clone()
    for row, f in zip(rows, embedding.detach(), strict=True):
        if row != IGNORED:
            moved = momentum * memory[row] + (1 - momentum) * f / f.norm()
            after[row] = moved / moved.norm()
    return after


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_memory_moves_towards_the_embeddings(momentum: float) -> None:
    loss = _loss(momentum=momentum)
    (embedding,) = _embeddings(1, 5, 0)
    rows = [3, IGNORED, 0, 3, 11]
    loss(embedding, torch.tensor(rows))
    expected = _moved(_memory(), rows, embedding, momentum)
    torch.testing.assert_close(loss.memory, expected, rtol=1e-12, atol=1e-12)


def test_one_of_several_embeddings_moves_the_memory() -> None:
    """PIRL: the image's, not that of the patches."""
    loss = _loss(every=False, update_mem_with_emb_index=1, loss_weights=[0.5, 0.5])
    patches, images = _embeddings(2, 3, 0)
    loss([patches, images], torch.tensor([5, 1, 2]))
    expected = _moved(_memory(), [5, 1, 2], images, 0.5)
    torch.testing.assert_close(loss.memory, expected, rtol=1e-12, atol=1e-12)


def test_or_all_of_them_in_turn() -> None:
    loss = _loss(loss_weights=[0.5, 0.5])
    first, second = _embeddings(2, 3, 0)
    loss([first, second], torch.tensor([5, 1, 2]))
    expected = _moved(_moved(_memory(), [5, 1, 2], first, 0.5), [5, 1, 2], second, 0.5)
    torch.testing.assert_close(loss.memory, expected, rtol=1e-12, atol=1e-12)


def test_evaluation_moves_nothing() -> None:
    loss = _loss().eval()
    value = loss(*_embeddings(1, 3, 0), torch.arange(3))
    assert torch.isfinite(value)
    assert torch.equal(loss.memory, _memory())
    assert torch.isinf(loss.log_partition)


@pytest.mark.parametrize("norm_init", [True, False])
def test_the_memory_starts_random(norm_init: bool) -> None:
    options = _options()
    options.memory_params.norm_init = norm_init
    options.memory_params.memory_size = 50
    loss = MemoryBankLoss(options, RunFacts(num_train_samples=SAMPLES))
    assert loss.memory.shape == (50, DIM)
    of_unit_length = torch.allclose(loss.memory.norm(dim=1), torch.ones(50))
    assert of_unit_length == norm_init


# ---- negatives


def test_negatives_are_uniform_and_follow_the_random_stream_that_is_saved() -> None:
    options = _options()
    options.negative_sampling_params.num_negatives = 3000
    loss = MemoryBankLoss(options, RunFacts(num_train_samples=SAMPLES))
    torch.manual_seed(0)
    drawn = loss._draw(torch.arange(4))
    assert drawn.shape == (4, 3000)
    for row in drawn:
        shares = torch.bincount(row, minlength=SAMPLES) / 3000
        assert shares.sub(1 / SAMPLES).abs().max().item() < 0.03
    assert not torch.equal(drawn[0], drawn[1])
    torch.manual_seed(0)
    assert torch.equal(loss._draw(torch.arange(4)), drawn)


def test_negatives_for_debugging_come_from_numpy() -> None:
    options = _options()
    options.negative_sampling_params.type = "debug"
    loss = MemoryBankLoss(options, RunFacts(num_train_samples=SAMPLES))
    np.random.seed(5)  # noqa: NPY002
    drawn = loss._draw(torch.arange(4))
    np.random.seed(5)  # noqa: NPY002
    assert drawn.tolist() == np.random.randint(0, SAMPLES, (4, DRAWN)).tolist()  # noqa: NPY002


# ---- several ranks: a linear model under DDP, each rank with its share of the images

IMAGES, PIXELS = 8, 5
# The first rank has two that do not count, so ranks count differently; 6 and 2 come twice.
TARGET = [IGNORED, 6, IGNORED, 2, 6, 9, 2, 11]


def _images() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(IMAGES, PIXELS, generator=generator, dtype=torch.float64)


def _model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(PIXELS, DIM).double()


def _on_this_rank(options: dict[str, Any]) -> tuple[float, Tensor, Tensor, Tensor, Tensor]:
    """(loss, DDP's gradient, own gradient over the ranks, memory, log Z)"""
    images = _images().chunk(world_size())[rank()]
    target = torch.tensor(TARGET).chunk(world_size())[rank()]
    plain = _model()
    loss = _loss(**options)
    value = loss(plain(images), target)
    value.backward()
    wrapped = DistributedDataParallel(_model())
    _loss(**options)(wrapped(images), target).backward()
    own = plain.weight.grad / world_size()
    return value.item(), wrapped.module.weight.grad, own, whole(loss.memory), loss.log_partition


@pytest.mark.parametrize(
    "options",
    [
        {"norm_constant": 40.0},
        {"loss_type": "cross_entropy"},
        {"norm_constant": 40.0, "sharded": True},
    ],
)
@pytest.mark.parametrize("pool", slow_but([2], [2, 4]), indirect=True)
def test_ranks_together_equal_one_process_with_the_whole_batch(
    pool: RankPool, options: dict[str, Any]
) -> None:
    model = _model()
    embedding = model(_images())
    expected = paper([embedding], TARGET, [1.0], 0.07, options.get("norm_constant"))
    expected.backward()
    memory = _moved(_memory(), TARGET, embedding, 0.5)
    results = pool.run(_on_this_rank, options)
    assert sum(each[0] for each in results) / pool.world_size == pytest.approx(
        expected.item(), rel=1e-9
    )
    for _, by_ddp, _, moved, _ in results:
        torch.testing.assert_close(by_ddp, model.weight.grad, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(moved, memory, rtol=1e-12, atol=1e-12)
    summed = torch.stack([each[2] for each in results]).sum(dim=0)
    torch.testing.assert_close(summed, model.weight.grad, rtol=1e-8, atol=1e-12)


def test_z_is_estimated_over_all_ranks(four_ranks: RankPool) -> None:
    alone = _loss()
    alone(_model()(_images()), torch.tensor(TARGET))
    results = four_ranks.run(_on_this_rank, {})
    for *_, log_z in results:
        assert log_z.item() == pytest.approx(alone.log_partition.item(), abs=1e-12)
        assert torch.equal(log_z, results[0][-1])


# ---- whole runs

NPID: dict[str, Any] = {
    "DATA__TRAIN__TRANSFORMS": [{"name": "RandomResizedCrop", "size": 8}, {"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
    "LOSS": {"name": "nce_loss_with_memory",
             "nce_loss_with_memory": {"memory_params": {"embedding_dim": 8},
                                      "negative_sampling_params": {"num_negatives": 6}}},
}  # fmt: skip
PIRL: dict[str, Any] = {
    "DATA__TRAIN__TRANSFORMS": [{"name": "ImgPilToPatchesAndImage", "crop_size_image": 8,
                                 "crop_size_patches": 87}, {"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "patch_and_image_collator",
    "DATA__TRAIN__INPUT_KEY_NAMES": ["patches", "images"],
    "TRAINER": {"TRAIN_STEP_NAME": "pirl_train_step"},
    "MODEL__MULTI_INPUT_HEAD_MAPPING": [["patches", ["flatten"]], ["images", ["flatten"]]],
    "MODEL__HEAD": {"PARAMS": [[["mlp", {"dims": [32, 8]}],
                                ["siamese_concat_view", {"num_towers": 9}],
                                ["mlp", {"dims": [72, 8]}]], [["mlp", {"dims": [32, 8]}]]]},
    "LOSS": {"name": "nce_loss_with_memory",
             "nce_loss_with_memory": {"loss_weights": [0.5, 0.5], "update_mem_with_emb_index": 1,
                                      "memory_params": {"embedding_dim": 8,
                                                        "update_mem_on_forward": False},
                                      "negative_sampling_params": {"num_negatives": 6}}},
}  # fmt: skip


def _of_ranks(folder: Path, method: dict[str, Any], stop_after: int | None = None) -> Any:
    return start(folder, method, stop_after), sum(
        path.suffix == ".shards" for path in (folder / "checkpoints").iterdir()
    )


def _sharded(method: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(method)
    options = changed["LOSS"]["nce_loss_with_memory"]
    options["memory_params"]["sharded"] = True
    return changed


@pytest.mark.parametrize(
    "method", [pytest.param(NPID, id="npid"), pytest.param(PIRL, id="pirl", marks=pytest.mark.slow)]
)
def test_a_memory_shared_out_is_the_same_run_to_the_bit(
    method: dict[str, Any], two_ranks: RankPool, tmp_path: Path
) -> None:
    whole_one = two_ranks.run(_of_ranks, tmp_path / "whole", method)
    shared = two_ranks.run(_of_ranks, tmp_path / "shared", _sharded(method))
    two_ranks.run(_of_ranks, tmp_path / "cut", _sharded(method), 1)
    resumed = two_ranks.run(_of_ranks, tmp_path / "cut", _sharded(method))
    for (one, _), (two, _), (rest, _) in zip(whole_one, shared, resumed, strict=True):
        assert len(one.losses) == 4
        assert one.losses == two.losses == [*two.losses[:1], *rest.losses]
        for state in (two.loss_state, rest.loss_state):
            assert all(torch.equal(state[name], one.loss_state[name]) for name in one.loss_state)
    assert {folders for _, folders in whole_one} == {0}
    assert all(folders for _, folders in shared)


def _restored(folder: Path, method: dict[str, Any]) -> tuple[int, Tensor]:
    task = make_task(folder / "other", [], **on_ranks(method, world_size()))
    found = find(folder / "checkpoints", CheckpointOptions(), task.peers)
    assert found is not None
    task.set_classy_state(found.state["classy_state_dict"])
    return local(task.loss.memory).shape[0], whole(task.loss.memory)


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_with_the_same_memory(
    two_ranks: RankPool, four_ranks: RankPool, tmp_path: Path
) -> None:
    (ended, _), _ = two_ranks.run(_of_ranks, tmp_path, _sharded(NPID))
    results = [
        *[(4, each) for each in four_ranks.run(_restored, tmp_path, _sharded(NPID))],
        *[(16, each) for each in four_ranks.run(_restored, tmp_path, NPID)],
        (16, _restored(tmp_path, _sharded(NPID))),
    ]
    for rows, (held, memory) in results:
        assert held == rows
        assert torch.equal(memory, ended.loss_state["memory"])


@pytest.mark.skipif(not VISSL.is_dir(), reason="VISSL's own YAML is not beside this checkout")
@pytest.mark.parametrize("width", [2, 4])
def test_vissls_wide_pirl_is_read(width: int) -> None:
    """Its head has a third thing behind its arguments."""
    name = f"resnet50_w{width}_mlphead"
    arguments = [
        "config=pretrain/pirl/pirl_jigsaw_4node_resnet50",
        f"+config/pretrain/pirl/models={name}",
        "config.MODEL.AMP_PARAMS.USE_AMP=false",
    ]
    run = resolve([*arguments, *SMALL], [str(VISSL)])
    assert run.config.LOSS.nce_loss_with_memory.loss_type == "cross_entropy"
    behind = run.config.MODEL.HEAD.PARAMS[1][0][2]
    assert behind == {"use_relu": True}


# ---- what a user can get wrong


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"memory_params": {"update_mem_on_forward": False}}, r"emb_index: expected one of \[0\]")],
)  # fmt: skip
def test_options_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    loss = {"name": "nce_loss_with_memory", "nce_loss_with_memory": changes}
    with pytest.raises(ConfigError, match=message):
        resolved(**{**NPID, "LOSS": loss})


def test_a_memory_that_is_too_small_is_refused() -> None:
    options = _options()
    options.memory_params.memory_size = 3
    with pytest.raises(ConfigError, match="memory_size: 3 rows for 12 training samples"):
        MemoryBankLoss(options, RunFacts(num_train_samples=SAMPLES))
    with pytest.raises(ConfigError, match="memory_size: -1 rows for -1 training"):
        MemoryBankLoss(_options(), RunFacts())
