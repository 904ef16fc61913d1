from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn

from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.process_group import neighbours
from sslengine.distributed.ranks import rank, world_size
from sslengine.models.options import SyncBatchNormOptions
from sslengine.models.sync_batchnorm import SyncBatchNorm, convert, synchronise
from sslengine.models.trunks.library import recomputed
from tests.ranks import RankPool

# Rows of each rank; the last batch of an epoch is uneven, and a rank may be left with one row.
SHARES = {2: ((4, 4), (5, 1)), 4: ((2, 2, 2, 2), (3, 1, 4, 2))}


def network() -> nn.Module:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 4, 3, bias=False)
    norms = (nn.BatchNorm2d(4), BatchNormAct2d(4, act_layer=nn.SiLU))
    model = nn.Sequential(convolution, *norms, nn.Flatten(), nn.Linear(16, 5))
    model.append(nn.BatchNorm1d(5, momentum=None, affine=False))
    return model.double()


def batches(rows: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    draw = [torch.randn(rows, 3, 4, 4, dtype=torch.float64, generator=generator) for _ in range(2)]
    return [draw[0] + 3, draw[1] * 2]


def steps(
    model: nn.Module, inputs: list[Tensor], weights: list[Tensor], parts: int = 0
) -> dict[str, Any]:
    """Two training batches and an evaluation; everything that may be looked at."""
    outputs, inputs = [], [x.clone().requires_grad_() for x in inputs]
    for x, weight in zip(inputs, weights, strict=True):
        output = recomputed([model], model, x) if parts else model(x)
        (output.square() * weight).sum().backward()
        outputs.append(output.detach())
    model.eval()
    with torch.no_grad():
        outputs.append(model(inputs[0]))
    return {
        "outputs": outputs,
        "input gradients": [x.grad for x in inputs],
        "gradients": [parameter.grad for parameter in model.parameters()],
        "buffers": list(model.buffers()),
    }


def weights_of_the_loss(rows: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(rows, 5, dtype=torch.float64, generator=generator) for _ in range(2)]


def on_ranks(shares: tuple[int, ...], parts: int = 0) -> dict[str, Any]:
    model = convert(network(), None)
    start, rows = sum(shares[: rank()]), shares[rank()]
    mine = slice(start, start + rows)
    inputs = [x[mine] for x in batches(sum(shares))]
    weights = [weight[mine] for weight in weights_of_the_loss(sum(shares))]
    result = steps(model, inputs, weights, parts)
    result["gradients"] = [sum_in_place(gradient) for gradient in result["gradients"]]
    return result


def compare(results: list[dict[str, Any]], rows: int) -> None:
    expected = steps(network(), batches(rows), weights_of_the_loss(rows))
    for key in ("outputs", "input gradients"):
        for index, whole in enumerate(expected[key]):
            joined = torch.cat([result[key][index] for result in results])
            torch.testing.assert_close(joined, whole, msg=lambda m, k=key: f"{k}: {m}")
    for key in ("gradients", "buffers"):
        for result in results:
            for ours, whole in zip(result[key], expected[key], strict=True):
                torch.testing.assert_close(ours, whole, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("shares", SHARES[2])
def test_two_ranks_are_one_batch(two_ranks: RankPool, shares: tuple[int, ...]) -> None:
    compare(two_ranks.run(on_ranks, shares), sum(shares))


def test_activation_checkpointing_changes_nothing(two_ranks: RankPool) -> None:
    compare(two_ranks.run(on_ranks, (5, 1), parts=2), 6)


@pytest.mark.parametrize("shares", SHARES[4])
def test_four_ranks_are_one_batch(four_ranks: RankPool, shares: tuple[int, ...]) -> None:
    compare(four_ranks.run(on_ranks, shares), sum(shares))


def group_output(group_size: int, ranks_per_node: int) -> tuple[bool, Tensor]:
    model = nn.Sequential(nn.BatchNorm1d(1, affine=False))
    options = SyncBatchNormOptions(CONVERT_BN_TO_SYNC_BN=True, GROUP_SIZE=group_size)
    synchronise(model, options, ranks_per_node)
    x = torch.tensor([[0.0], [1.0]]) + 10 * rank()
    return isinstance(model[0], SyncBatchNorm), model(x).flatten()


@pytest.mark.parametrize(("group_size", "ranks_per_node"), [(-1, 2), (2, 1), (0, 2), (8, 2)])
def test_groups(four_ranks: RankPool, group_size: int, ranks_per_node: int) -> None:
    results = four_ranks.run(group_output, group_size, ranks_per_node)
    together = 2 if group_size in (-1, 2) else 4
    x = torch.tensor([[0.0, 1.0, 10, 11], [20, 21, 30, 31]]).view(-1, 2 * together).double()
    expected = (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    assert all(converted for converted, _ in results)
    ours = torch.cat([output for _, output in results]).double()
    torch.testing.assert_close(ours, expected.flatten(), atol=1e-5, rtol=1e-5)


def copied(_: None) -> tuple[bool, bool]:
    model = convert(nn.Sequential(nn.BatchNorm1d(2)), neighbours(2))
    other = copy.deepcopy(model)
    other(torch.randn(3, 2))
    same_group = other[0].process_group is model[0].process_group
    return same_group, bool((model[0].running_mean == 0).all())


def test_a_copy_talks_to_the_same_ranks(four_ranks: RankPool) -> None:
    assert four_ranks.run(copied, None) == [(True, True)] * 4


def conversion(_: None) -> list[bool]:
    model = network().eval()
    state, parameters = dict(model.state_dict()), list(model.parameters())
    converted = convert(model, None)
    return [
        converted is model, world_size() == 2,
        all(a is b for a, b in zip(parameters, converted.parameters(), strict=True)),
        list(state) == list(converted.state_dict()),
        isinstance(model[1], SyncBatchNorm) and isinstance(model[5], SyncBatchNorm),
        not model[1].training and model[5].momentum is None, convert(model, None)[1] is model[1],
    ]  # fmt: skip


def test_conversion_keeps_parameters_names_and_mode(two_ranks: RankPool) -> None:
    assert two_ranks.run(conversion, None) == [[True] * 7] * 2


def half_precision(_: None) -> tuple[torch.dtype, float]:
    model = convert(nn.Sequential(nn.BatchNorm1d(1)), None)
    out = model((1000 + torch.arange(8.0) * 8).view(8, 1).bfloat16())
    return out.dtype, float(out.detach().float().std(correction=0))


def test_half_precision_is_computed_in_single(two_ranks: RankPool) -> None:
    for dtype, deviation in two_ranks.run(half_precision, None):
        assert dtype == torch.bfloat16
        assert deviation == pytest.approx(1, abs=0.01)


def test_one_process_keeps_plain_batch_norm() -> None:
    model = network()
    options = SyncBatchNormOptions(CONVERT_BN_TO_SYNC_BN=True)
    assert type(synchronise(model, options, 8)[1]) is nn.BatchNorm2d  # type: ignore[index]


def not_asked_for(_: None) -> str:
    return type(synchronise(network(), SyncBatchNormOptions(), 2)[1]).__name__  # type: ignore[index]


def test_nothing_happens_unless_asked_for(two_ranks: RankPool) -> None:
    assert two_ranks.run(not_asked_for, None) == ["BatchNorm2d"] * 2
