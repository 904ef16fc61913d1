"""Rotary positions of `vision_transformer`: beside timm's DINOv3, by their formulas, in runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from sslengine.config.sections import section_problems
from sslengine.models.options import TimmOptions, VisionTransformerOptions
from sslengine.models.trunks import rotations
from sslengine.models.trunks.from_timm import timm_trunk
from sslengine.models.trunks.rotations import CornerRotations, around, axial_frequencies, rotated
from sslengine.models.trunks.vision_transformer import VisionTransformer
from tests import fake_cuda
from tests.models.trunks import checks

SMALL: dict[str, Any] = {
    "IMAGE_SIZE": 32, "PATCH_SIZE": 8, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": 24,
    "MLP_DIM": 48,
}  # fmt: skip
MOVED = {"ROPE_SHIFT": 0.3, "ROPE_JITTER": 1.2, "ROPE_RESCALE": 2.0}
SHOWN = torch.tensor([[5, 0, 9], [15, 3, 2]])


def trunk(rope: str = "centres", **options: Any) -> Any:
    """In float64 and eval mode, with random numbers in all parameters."""
    torch.manual_seed(0)
    made = VisionTransformer(VisionTransformerOptions(**{**SMALL, "ROPE": rope, **options}))
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.2)
    return made.double().eval()


def dinov3(ours: nn.Module, **more: Any) -> Any:
    """timm's network with the same weights."""
    network = timm.create_model(
        "vit_small_patch16_dinov3", num_classes=0, img_size=32, patch_size=8, embed_dim=24, depth=2,
        num_heads=2, mlp_ratio=2.0, norm_layer=nn.LayerNorm, **more,
    )  # fmt: skip
    for norm in network.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.eps = 1e-6
    names = {".ls1.gamma": ".gamma_1", ".ls2.gamma": ".gamma_2"}
    state = ours.state_dict()
    for name in list(state):
        for one, other in names.items():
            if name.endswith(one):
                state[name.replace(one, other)] = state.pop(name)
    network.load_state_dict(state)
    return network.double().eval()


def images(*size: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, *size, dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("size", [(32, 32), (16, 48)])
def test_centres_are_dinov3s(size: tuple[int, int]) -> None:
    ours = trunk(REGISTER_TOKENS=4, LAYER_SCALE=0.5)
    x = images(*size)
    tokens = dinov3(ours).forward_features(x)
    torch.testing.assert_close(ours(x, ["lastBLK"])[0], tokens)
    torch.testing.assert_close(ours(x)[0], tokens[:, 0])
    slower = trunk(REGISTER_TOKENS=4, LAYER_SCALE=0.5, ROPE_BASE=1e9)
    assert not torch.allclose(slower(x)[0], tokens[:, 0], atol=1e-5, rtol=1e-4)


def test_rotations_by_the_formula() -> None:
    """Pairs of channels are complex numbers; the angle is 2 pi times the place over the period."""
    rope = trunk().rotations
    (width, rows, columns) = (12, 2, 4)
    q = torch.randn(1, 1, 1 + rows * columns, width, dtype=torch.float64)
    found = rotated(q, rope.rotate_tokens((rows, columns), None, 1))[0, 0]
    torch.testing.assert_close(found[0], q[0, 0, 0])  # the class token
    for row in range(rows):
        for column in range(columns):
            number = 1 + row * columns + column
            places = [2 * (row + 0.5) / rows - 1] * 3 + [2 * (column + 0.5) / columns - 1] * 3
            periods = [100 ** (k / 3) for k in range(3)] * 2
            angles = [2 * math.pi * a / b for a, b in zip(places, periods, strict=True)]
            turned = [complex(q[0, 0, number, k], q[0, 0, number, k + 6])
                      * complex(math.cos(angle), math.sin(angle))
                      for k, angle in enumerate(angles)]  # fmt: skip
            expected = [z.real for z in turned] + [z.imag for z in turned]
            torch.testing.assert_close(found[number], torch.tensor(expected).double(), rtol=1e-5, atol=1e-6)  # fmt: skip


@torch.no_grad()
def test_rotations_of_shown_patches() -> None:
    """Those that they have in the whole image; of each image others."""
    for rope in (trunk().rotations, trunk("corners").rotations):
        every = rope.rotate_tokens((4, 4), None, 1)
        some = rope.rotate_tokens((4, 4), SHOWN, 1)
        assert some.shape == (2, 2, 1, 4, 12)
        every = every.view(2, 17, 12)
        for image, patches in enumerate(SHOWN):
            torch.testing.assert_close(some[:, image, 0, 1:], every[:, 1 + patches])


def test_tokens_without_a_place_are_on_the_border_of_what_is_shown() -> None:
    """EncoderDecoder.get_edge_coordinates and prepare_tokens_and_drop of CAPI's code, with eight
    registers."""
    rope = CornerRotations(8, mixed=True).double()
    inside = rope.places(torch.tensor([[2, 3, 6, 7, 14, 15]]), (4, 4))
    at = torch.tensor([[0, 2], [0, 3], [1, 2], [1, 3], [3, 2], [3, 3]]).double()
    torch.testing.assert_close(inside[0] * 3, at)
    box = torch.tensor([[0, 0], [0.5, 0], [1, 0], [1, 0.5], [1, 1], [0.5, 1], [0, 1], [0, 0.5]])
    low, high = torch.tensor([0.0, 2 / 3]).double(), torch.tensor([1.0, 1.0]).double()
    torch.testing.assert_close(around(inside, 8)[0], low + box * (high - low))


def test_one_angle_for_a_pair_keeps_products_where_both_places_move() -> None:
    """Queries and keys depend on how far apart they are; with unlike angles they do not."""
    q, k = torch.randn(2, 8, dtype=torch.float64)

    def product(mixed: bool, start: float) -> float:
        frequencies = axial_frequencies(8, mixed)
        turned = []
        for x, place in ((q, (start, 0.3)), (k, (start + 0.2, 0.4))):
            angles = torch.tensor(place, dtype=torch.float64) @ frequencies
            half = torch.cat([-x[4:], x[:4]])
            turned.append(x * angles.cos() + half * angles.sin())
        return float(turned[0] @ turned[1])

    assert product(False, 0.5) == pytest.approx(product(False, 0.1), rel=1e-9)
    assert product(True, 0.5) != pytest.approx(product(True, 0.1), rel=1e-2)
    frequencies = axial_frequencies(8, mixed=False)
    assert frequencies.max().item() == pytest.approx(14 * math.pi)
    assert frequencies[frequencies > 0].min().item() == pytest.approx(14e-4 * math.pi)


@torch.no_grad()
def test_places_are_moved_in_training_alone() -> None:
    """As timm moves them with the same random numbers; see below for what it does."""
    ours, x = trunk(LAYER_SCALE=0.5, REGISTER_TOKENS=2, **MOVED), images(32, 32)
    theirs = dinov3(ours, num_reg_tokens=2)
    vars(theirs.rope).update(shift_coords=0.3, jitter_coords=1.2, rescale_coords=2.0, aug_active=True)  # fmt: skip
    fixed = ours(x, ["lastBLK"])[0]
    torch.testing.assert_close(fixed, theirs.forward_features(x))
    ours.train()
    theirs.train()
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        drawn.append(ours(x, ["lastBLK"])[0])
        torch.manual_seed(seed)
        torch.testing.assert_close(theirs.forward_features(x), drawn[-1])
    assert not torch.allclose(drawn[0], drawn[1], atol=1e-3)
    assert not torch.allclose(drawn[0], fixed, atol=1e-3)


@pytest.mark.parametrize("rope", ["centres", "corners"])
def test_activation_checkpointing_keeps_the_rotations_of_each_size(rope: str) -> None:
    model = trunk(rope, DROP_PATH_RATE=0.3, REGISTER_TOKENS=2)
    checks.checkpointing_changes_nothing(model, sizes=((32, 32), (16, 16)))


@pytest.mark.parametrize("rope", ["centres", "corners_mixed"])
def test_a_forward_pass_stays_on_the_gpu(rope: str) -> None:
    model = trunk(rope, **(MOVED if rope == "centres" else {})).float().train()
    model(torch.randn(2, 3, 32, 32))
    with fake_cuda.Mode(allow_non_fake_inputs=False) as mode:
        fake_cuda.move(model, mode, {})
        shown, x = (fake_cuda.moved(each, mode) for each in (SHOWN, torch.randn(2, 3, 32, 32)))
        with fake_cuda.NothingOfTheHost():
            assert model(x)[0].device == fake_cuda.CUDA
            assert model(x, ["lastBLK"], shown=shown)[0].device == fake_cuda.CUDA


@pytest.mark.parametrize("rope", ["centres", "corners_mixed"])
def test_weights_in_half_precision(rope: str) -> None:
    """As sharding computes: buffers stay float32."""
    model = VisionTransformer(VisionTransformerOptions(**SMALL, ROPE=rope))
    assert model.rotations is not None
    assert model.rotations.rotate_tokens((2, 2), None, 1).dtype is torch.float32
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    assert model(torch.randn(2, 3, 32, 32).bfloat16())[0].dtype is torch.bfloat16


def test_capis_norms_and_biases() -> None:
    model = trunk("corners", NORM="RMSNorm", PROJ_BIAS=False, USE_CLASS_TOKEN=False)
    names = dict(model.named_parameters())
    assert [name for name in names if "bias" in name] == ["patch_embed.proj.bias"]
    assert isinstance(model.blocks[0].norm1, nn.RMSNorm)
    assert "pos_embed" not in names
    assert not list(model.norm.parameters())
    (tokens,) = model(images(32, 32), ["lastBLK"])
    torch.testing.assert_close(tokens.square().mean(-1), torch.ones(2, 16).double(), rtol=1e-4, atol=0)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ROPE": "on"}, "ROPE: expected one of"),
        ({"ROPE": "centres", "SINE_POSITIONS": True}, "SINE_POSITIONS: ROPE has other"),
        ({"ROPE": "corners", "HIDDEN_DIM": 20}, "NUM_HEADS: ROPE needs heads .* 20 / 2"),
        ({"ROPE_JITTER": 1.2}, "ROPE_JITTER: has an effect only with ROPE: centres"),
        ({"ROPE": "centres", "ROPE_RESCALE": 0.5}, "ROPE_RESCALE: expected 1 or more, or 0"),
        ({"ROPE": "centres", "ROPE_BASE": 1}, "ROPE_BASE: expected a number above 1"),
        ({"ROPE": "centres", "ROPE_SHIFT": -1}, "ROPE_SHIFT: expected 0 or more"),
        ({"NORM": "BatchNorm"}, "NORM: expected one of"),
    ],
)
def test_mistakes(options: dict[str, Any], said: str) -> None:
    import re

    lines = list(section_problems(VisionTransformerOptions(**{**SMALL, **options})))
    assert any(re.match(said, line) for line in lines), lines


# ---- The positions of DINOv3's vision transformers, beside those that timm makes on the host.


SMALL_ROTARY = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
RANDOM = {"shift_coords": 0.3, "jitter_coords": 1.2, "rescale_coords": 2.0, "aug_active": True}
GRIDS = [(4, 4), (2, 6), (7, 3)]


def pair(moved: Mapping[str, Any] | None = None, **more: Any) -> tuple[Any, Any]:
    """The trunk and timm's network, with the same weights. moved: what timm's arguments set."""
    name, arguments = "vit_small_patch16_dinov3", {**SMALL_ROTARY, **more}
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
    monkeypatch.setattr(rotations, "KEPT", 2)
    rope = pair()[0].rope
    first, second, third = (rope.get_embed(grid) for grid in GRIDS)
    assert rope.get_embed(GRIDS[1]) is second
    assert rope.get_embed(GRIDS[2]) is third
    assert rope.get_embed(GRIDS[0]) is not first  # the earliest is not kept
    assert not torch.equal(rope.double().get_embed(GRIDS[2]), third)  # made in float64


def test_training_uses_what_inference_made() -> None:
    trunk, _ = pair()
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        trunk(images)
    trunk(images)[0].sum().backward()
    assert trunk.blocks[0].attn.qkv.weight.grad is not None


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
