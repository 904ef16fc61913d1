from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.config.resolve import resolve_dict
from sslengine.errors import DataError
from sslengine.methods.step import Step
from sslengine.methods.whole import Batch
from tests.config.recipes import recipe
from tests.methods.whole_steps import fill, method_of, parameters_of

SIDE, PATCH, WIDTH, INSIDE = 16, 4, 16, 8
GRID = SIDE // PATCH
VIT = {
    "IMAGE_SIZE": SIDE, "PATCH_SIZE": PATCH, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": WIDTH,
    "MLP_DIM": 2 * WIDTH, "QKV_BIAS": True, "USE_CLASS_TOKEN": False, "SINE_POSITIONS": True,
}  # fmt: skip
PREDICTOR = {"predictor_dim": INSIDE, "predictor_layers": 2, "predictor_heads": 2}
SHOWN = torch.tensor([[0, 1, 2, 3, 8], [0, 4, 8, 12, 13], [10, 11, 14, 15, 3]])
BLOCKS = torch.tensor([[[4, 5], [9, 10]], [[1, 2], [6, 10]], [[0, 1], [4, 8]]])


def of_run(**vit: Any) -> dict[str, Any]:
    return {
        "MODEL__HEAD__PARAMS": [],
        "MODEL__TRUNK": {"NAME": "vision_transformer", "VISION_TRANSFORMERS": {**VIT, **vit}},
        "DATA__TRAIN__COLLATE_FUNCTION_PARAMS": {"patch_size": PATCH, "min_keep": 1},
        "DATA__TRAIN__TRANSFORMS": [
            {"name": "RandomResizedCrop", "size": SIDE},
            {"name": "ToTensor"},
        ],
        "LOSS": {"name": "ijepa_loss", "momentum": 0.9, **PREDICTOR},
    }


def make(**vit: Any) -> Any:
    """In float64; the teacher has other weights than the trunk."""
    method = method_of(**of_run(**vit))
    for each in (*method.trunk.trunk.parameters(), *method.parameters()):
        if each.shape[1:] != (GRID * GRID, WIDTH):  # the fixed positions
            each.data += 0.1 * torch.randn_like(each)
    return method


def images(step: int = 0) -> Tensor:
    numbers = torch.arange(3 * 3 * SIDE * SIDE, dtype=torch.float64)
    return (numbers * (0.13 + 0.01 * step)).sin().view(3, 3, SIDE, SIDE)


def batch(step: int = 0) -> Batch:
    return Batch({"input": images(step), "shown": SHOWN, "target_blocks": BLOCKS})


def published(method: Any) -> Tensor:
    """The paper's loss, image by image, block by block and patch by patch."""
    trunk, teacher = method.trunk.trunk, method.teacher.module.trunk
    predictor = method.predictor
    errors = []
    for image, shown, blocks in zip(images(), SHOWN.tolist(), BLOCKS.tolist(), strict=True):
        with torch.no_grad():
            everything = encoded(teacher, image, range(GRID * GRID))
        context = predictor.embed(encoded(trunk, image, shown))
        seen = [
            token + position(place, INSIDE) for token, place in zip(context, shown, strict=True)
        ]
        for block in blocks:
            asked = [predictor.hidden_token[0, 0] + position(place, INSIDE) for place in block]
            tokens = predictor.blocks(torch.stack([*seen, *asked])[None])[0, len(seen) :]
            predicted = predictor.project(predictor.norm(tokens))
            for place, guess in zip(block, predicted, strict=True):
                target = everything[place]
                spread = ((target - target.mean()) ** 2).mean() + 1e-5
                apart = (guess - (target - target.mean()) / spread.sqrt()).abs()
                errors.append(torch.where(apart < 1, apart**2 / 2, apart - 0.5))
    return torch.stack(errors).mean()


def encoded(trunk: Any, image: Tensor, places: Any) -> Tensor:
    """Tokens of these patches, which see only each other."""
    tokens = []
    for place in places:
        top, left = (PATCH * each for each in divmod(place, GRID))
        patch = image[:, top : top + PATCH, left : left + PATCH]
        proj = trunk.patch_embed.proj
        embedded = (proj.weight * patch).sum((1, 2, 3)) + proj.bias
        tokens.append(embedded + trunk.pos_embed[0, place])
    found: Tensor = trunk.norm(trunk.blocks(torch.stack(tokens)[None]))[0]
    return found


def position(place: int, width: int) -> Tensor:
    row, column = divmod(place, GRID)
    quarter = width // 4
    angles = [[at / 10_000 ** (i / quarter) for i in range(quarter)] for at in (column, row)]
    values = [wave(angle) for each in angles for wave in (math.sin, math.cos) for angle in each]
    return torch.tensor(values, dtype=torch.float32).double()


def test_loss_and_gradients_are_the_published_ones() -> None:
    method = make()
    loss = method(batch(), Step.alone())
    trained = {name: each for name, each in parameters_of(method).items() if each.requires_grad}
    assert "trunk.pos_embed" not in trained
    ours = torch.autograd.grad(loss, list(trained.values()), retain_graph=True)
    expected = published(method)
    theirs = torch.autograd.grad(expected, list(trained.values()))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for name, one, two in zip(trained, ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12, msg=f"{name}: {one - two}")
    loss.backward()
    assert all(each.grad is None for each in method.teacher.parameters())


def test_a_class_token_is_not_predicted_from() -> None:
    seen: list[Tensor] = []
    method = make(USE_CLASS_TOKEN=True)
    method.predictor.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    method(batch(), Step.alone())
    tokens = method.trunk(images(), ["lastBLK"], shown=SHOWN)["lastBLK"]
    assert tokens.shape[1] == 1 + SHOWN.shape[1]
    assert torch.equal(seen[0], tokens[:, 1:])


def test_what_is_not_in_the_context_is_never_seen() -> None:
    trunk, changed = make().trunk, images()
    side = torch.ones(3, GRID * GRID).scatter(1, SHOWN, 0.0).view(3, 1, GRID, GRID)
    away = side.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3).bool()
    changed = torch.where(away, torch.rand_like(changed), changed)
    one, other = (
        trunk(each, ["lastPATCH"], shown=SHOWN)["lastPATCH"] for each in (images(), changed)
    )
    assert torch.equal(one, other)
    assert one.shape == (3, 5, WIDTH)


def test_four_steps_are_those_of_the_official_code() -> None:
    """facebookresearch/ijepa 52c1ae9, src/train.py's step and init_opt's groups and schedules, run on
    a CPU in float64 with these images, blocks and weights: lr 0.002 -> 0.01 -> 1e-5 with two
    steps of warm-up, weight decay 0.04 -> 0.4, momentum 0.9 -> 1."""
    method = make()
    trunk, predictor = method.trunk.trunk, method.predictor
    official = {"hidden_token": "mask_token", "embed": "predictor_embed", "blocks": "predictor_blocks",
                "norm": "predictor_norm", "project": "predictor_proj"}  # fmt: skip
    for name, each in trunk.named_parameters():
        if each.requires_grad:
            fill([(name, each)], 0.2)
    for name, each in predictor.named_parameters():
        first, *rest = name.split(".")
        fill([(".".join([official[first], *rest]), each)], 0.2)
    method.teacher.attach(trunk)
    trained = [p for p in (*trunk.parameters(), *predictor.parameters()) if p.requires_grad]
    decayed = [each for each in trained if each.ndim > 1]
    others = [each for each in trained if each.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}])
    losses = []
    for step, (lr, decay) in enumerate(zip(RATES, DECAYS, strict=True)):
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.param_groups[0]["weight_decay"] = decay
        loss = method(batch(step), Step.alone())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.teacher.after_update(Step.alone(where=step / 4))
        losses.append(loss.item())
    assert losses == pytest.approx(OFFICIAL, rel=1e-9)
    weights = [p for p in method.teacher.parameters() if p.shape != trunk.pos_embed.shape]
    assert sum(each.abs().sum().item() for each in weights) == pytest.approx(740.1556812826278)


RATES = [0.006, 0.01, 0.005005, 1e-05]
DECAYS = [0.09272077938642143, 0.22, 0.3472792206135786, 0.4]
OFFICIAL = [0.4603250124518998, 0.47041081826553416, 0.4106061663813603, 0.40365910920371967]


def test_larger_images_get_positions_of_their_own() -> None:
    large = torch.rand(3, 3, SIDE, 2 * SIDE, dtype=torch.float64)
    given = Batch({"input": large, "shown": SHOWN + 16, "target_blocks": BLOCKS})
    assert make()(given, Step.alone()).isfinite()


def test_test_images_get_blocks_as_those_of_training() -> None:
    data = resolve_dict(recipe(**of_run())).config.DATA
    assert data.TEST.COLLATE_FUNCTION == "multi_block_collator"
    assert data.TEST.COLLATE_FUNCTION_PARAMS == {"patch_size": PATCH, "min_keep": 1}


def test_a_batch_without_blocks_is_explained() -> None:
    with pytest.raises(DataError, match=r"config\.DATA\.TRAIN"):
        make()(Batch({"input": images()}), Step.alone())
