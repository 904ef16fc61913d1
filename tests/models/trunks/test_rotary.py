"""The positions of DINOv3's vision transformers, beside those that timm makes on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from sslengine.models.options import TimmOptions
from sslengine.models.trunks import rotary
from sslengine.models.trunks.from_timm import timm_trunk
from tests import fake_cuda

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
RANDOM = {"shift_coords": 0.3, "jitter_coords": 1.2, "rescale_coords": 2.0, "aug_active": True}
GRIDS = [(4, 4), (2, 6), (7, 3)]


def pair(moved: Mapping[str, Any] | None = None, **more: Any) -> tuple[Any, Any]:
    """The trunk and timm's network, with the same weights. moved: what timm's arguments set."""
    name, arguments = "vit_small_patch16_dinov3", {**SMALL, **more}
    trunk = timm_trunk(TimmOptions(model=name, arguments=arguments))
    network = timm.create_model(name, num_classes=0, **arguments)
    network.load_state_dict(trunk.state_dict())
    for each in (trunk, network):
        vars(each.rope).update(moved or {})
    return trunk, network


def equal(found: Tensor, expected: Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", [{}, {"dynamic_img_size": False}, {"moved": RANDOM}])
def test_positions_are_those_of_timm(how: dict[str, Any], dtype: torch.dtype) -> None:
    trunk, network = (each.eval().to(dtype) for each in pair(**how))
    for grid in (*GRIDS, *GRIDS):
        assert equal(trunk.rope.get_embed(grid), network.rope.get_embed(grid))
    if "dynamic_img_size" in how:
        assert equal(trunk.rope.get_embed(), network.rope.get_embed())
    images = torch.randn(2, 3, 32, 32, dtype=dtype)
    assert equal(trunk(images)[0].flatten(1), network(images))


def test_positions_are_made_once_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary, "KEPT", 2)
    rope = pair()[0].rope
    first, second, third = (rope.get_embed(grid) for grid in GRIDS)
    assert rope.get_embed(GRIDS[1]) is second
    assert rope.get_embed(GRIDS[2]) is third
    assert rope.get_embed(GRIDS[0]) is not first  # the earliest is not kept
    assert not torch.equal(rope.double().get_embed(GRIDS[2]), third)  # made in float64


def test_random_positions_are_those_of_timm() -> None:
    trunk, network = (each.train() for each in pair(RANDOM))
    found = [[torch.manual_seed(seed), each.rope.get_embed((4, 4))][1]
             for seed in (1, 2) for each in (trunk, network)]  # fmt: skip
    assert equal(found[0], found[1])
    assert equal(found[2], found[3])
    assert not torch.equal(found[0], found[2])


def test_training_uses_what_inference_made() -> None:
    trunk, _ = pair()
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        trunk(images)
    trunk(images)[0].sum().backward()
    assert trunk.blocks[0].attn.qkv.weight.grad is not None


@pytest.mark.parametrize("how", [{}, {"moved": RANDOM}])
def test_a_forward_pass_stays_on_the_gpu(how: dict[str, Any]) -> None:
    trunk, _ = pair(**how)
    trunk(torch.randn(2, 3, 32, 32))
    with fake_cuda.Mode(allow_non_fake_inputs=False) as mode:
        fake_cuda.move(trunk, mode, {})
        images = fake_cuda.moved(torch.randn(2, 3, 32, 32), mode)
        with fake_cuda.NothingOfTheHost():
            assert trunk(images)[0].device == fake_cuda.CUDA


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"moved": RANDOM}])
def test_compiled_positions_are_part_of_the_graph(how: dict[str, Any]) -> None:
    trunk, network = pair(**how)
    torch.compiler.reset()
    compiled = torch.compile(trunk.rope.get_embed, backend="eager", fullgraph=True)
    for grid in GRIDS:
        with torch.random.fork_rng():
            found = compiled(grid)
        assert equal(found, network.rope.get_embed(grid))
