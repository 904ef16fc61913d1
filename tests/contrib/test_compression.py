from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.contrib.compression import Compression
from sslengine.distributed.data_parallel import wrap
from sslengine.distributed.ranks import rank
from tests.engine.sharded import SMALL_VIT
from tests.integration.test_sharded_resume import start
from tests.ranks import RankPool

EPSILON = {"fp16": torch.finfo(torch.float16).eps, "bf16": torch.finfo(torch.bfloat16).eps}


def _gradients(kind: str | None) -> tuple[list[Tensor], list[Tensor]]:
    """After one backward over the ranks' own images: reduced, and this rank's alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    compression = None if kind is None else Compression(kind)
    wrapped = wrap(model, torch.nn.Identity(), torch.device("cpu"), 25, False, True, compression)
    images = torch.randn(5, 6, generator=torch.Generator().manual_seed(rank()))
    alone = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
    wrapped(images).square().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None], list(alone)


@pytest.mark.parametrize("kind", EPSILON)
def test_what_rounding_takes_away(two_ranks: RankPool, kind: str) -> None:
    """Each rank divides by two, rounds, and the sum is rounded: three roundings of half an eps,
    each of a number no larger than what the ranks' gradients have in size.
    """
    results = two_ranks.run(_gradients, kind)
    plain = two_ranks.run(_gradients, None)
    sizes = [a.abs() + b.abs() for a, b in zip(results[0][1], results[1][1], strict=True)]
    differs = False
    for (got, _), (want, _) in zip(results, plain, strict=True):
        for one, other, size in zip(got, want, sizes, strict=True):
            assert ((one - other).abs() <= 3 * EPSILON[kind] / 2 * size / 2 + 1e-7).all()
            differs = differs or not torch.equal(one, other)
    assert differs  # something was compressed


POWER: dict[str, Any] = {
    **SMALL_VIT, "DATA__TRAIN__DATA_LIMIT": 32, "DISTRIBUTED__GRADIENT_COMPRESSION": "powersgd",
    "DISTRIBUTED__POWERSGD_START": 2,
}  # fmt: skip


@pytest.mark.slow
def test_powersgd_goes_on_bit_by_bit(two_ranks: RankPool, tmp_path: Path) -> None:
    """Errors, factors and the random stream: after two plain steps and two compressed ones."""
    whole = two_ranks.run(start, tmp_path / "whole", POWER)
    two_ranks.run(start, tmp_path / "cut", POWER, 5)
    resumed = two_ranks.run(start, tmp_path / "cut", POWER)
    for one, other in zip(resumed, whole, strict=True):
        assert len(one.losses) == 3
        assert one.losses == other.losses[5:]
        assert all(torch.equal(one.weights[name], other.weights[name]) for name in other.weights)
    plain = two_ranks.run(start, tmp_path / "plain", {**POWER, "DISTRIBUTED__POWERSGD_START": 99})
    assert plain[0].losses[:3] == whole[0].losses[:3]
    assert plain[0].losses[4:] != whole[0].losses[4:]


def test_powersgd_forgets_on_another_number_of_ranks(two_ranks: RankPool, tmp_path: Path) -> None:
    two_ranks.run(start, tmp_path, POWER, 5)
    assert len(start(tmp_path, POWER).losses) == 3


def test_rounding_has_nothing_to_remember() -> None:
    assert Compression("fp16").state_dict() == {}
