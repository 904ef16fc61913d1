from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.config.facts import RunFacts
from sslengine.config.resolve import resolve_dict
from sslengine.config.sections import read
from sslengine.errors import TrainingError
from sslengine.methods.ijepa import IJepaLoss, IJepaOptions
from sslengine.methods.step import Step
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from tests.config.recipes import recipe
from tests.methods.whole_steps import fill

SIDE, PATCH, WIDTH, INSIDE = 16, 4, 16, 8
GRID = SIDE // PATCH
ROUTE = ["data", {"feat_names": ["lastBLK"], "additional_keys": ["shown"]}]
VIT = {
    "IMAGE_SIZE": SIDE, "PATCH_SIZE": PATCH, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": WIDTH,
    "MLP_DIM": 2 * WIDTH, "QKV_BIAS": True, "USE_CLASS_TOKEN": False, "SINE_POSITIONS": True,
}  # fmt: skip
PREDICTOR = {"predictor_dim": INSIDE, "predictor_layers": 2, "predictor_heads": 2}
SHOWN = torch.tensor([[0, 1, 2, 3, 8], [0, 4, 8, 12, 13], [10, 11, 14, 15, 3]])
BLOCKS = torch.tensor([[[4, 5], [9, 10]], [[1, 2], [6, 10]], [[0, 1], [4, 8]]])


def make(momentum: float = 0.9, **vit: Any) -> tuple[nn.Module, IJepaLoss]:
    """In float64; the teacher has other weights than the model."""
    tree = recipe(
        MODEL__HEAD__PARAMS=[], MODEL__MULTI_INPUT_HEAD_MAPPING=[ROUTE],
        MODEL__TRUNK={"NAME": "vision_transformer", "VISION_TRANSFORMERS": {**VIT, **vit}},
        DATA__TRAIN__INPUT_KEY_NAMES=["data", "shown"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = build_model(read(resolve_dict(tree).config, ModelOptions)).double()
    method = IJepaLoss(IJepaOptions(momentum, **PREDICTOR), RunFacts())
    method.teacher.attach(model)
    method.attach(model)
    for each in (*model.parameters(), *method.parameters()):
        if each.shape[1:] != (GRID * GRID, WIDTH):  # the fixed positions
            each.data += 0.1 * torch.randn_like(each)
    return model, method


def images(step: int = 0) -> Tensor:
    numbers = torch.arange(3 * 3 * SIDE * SIDE, dtype=torch.float64)
    return (numbers * (0.13 + 0.01 * step)).sin().view(3, 3, SIDE, SIDE)


def batch(step: int = 0) -> dict[str, Any]:
    return {"input": {"data": images(step), "shown": SHOWN}, "target_blocks": BLOCKS}


def loss_of(model: nn.Module, method: IJepaLoss, sample: dict[str, Any]) -> Tensor:
    return method(model(sample["input"])[0], sample, Step.alone())


def published(model: Any, method: Any) -> Tensor:
    """The paper's loss, image by image, block by block and patch by patch."""
    trunk, teacher, predictor = model.trunk, method.teacher.module.trunk, method.predictor
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
    model, method = make()
    loss = loss_of(model, method, batch())
    named = dict([*model.named_parameters(), *method.predictor.named_parameters()])
    trained = {name: each for name, each in named.items() if each.requires_grad}
    assert "trunk.pos_embed" not in trained
    ours = torch.autograd.grad(loss, list(trained.values()), retain_graph=True)
    expected = published(model, method)
    theirs = torch.autograd.grad(expected, list(trained.values()))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for name, one, two in zip(trained, ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12, msg=f"{name}: {one - two}")
    loss.backward()
    assert all(each.grad is None for each in method.teacher.parameters())


def test_a_class_token_is_not_predicted_from() -> None:
    model, method = make(USE_CLASS_TOKEN=True)
    tokens = model(batch()["input"])[0]
    assert tokens.shape[1] == 1 + SHOWN.shape[1]
    changed = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, 1:]], dim=1)
    one, other = (method(each, batch(), Step.alone()) for each in (tokens, changed))
    assert torch.equal(one, other)


def test_what_is_not_in_the_context_is_never_seen() -> None:
    model, _ = make()
    changed = images()
    side = torch.ones(3, GRID * GRID).scatter(1, SHOWN, 0.0).view(3, 1, GRID, GRID)
    away = side.repeat_interleave(PATCH, 2).repeat_interleave(PATCH, 3).bool()
    changed = torch.where(away, torch.rand_like(changed), changed)
    one, other = (model({"data": each, "shown": SHOWN})[0] for each in (images(), changed))
    assert torch.equal(one, other)
    assert one.shape == (3, 5, WIDTH)


def test_four_steps_are_those_of_the_official_code() -> None:
    """facebookresearch/ijepa 52c1ae9, src/train.py's step and init_opt's groups and schedules, run on
    a CPU in float64 with these images, blocks and weights: lr 0.002 -> 0.01 -> 1e-5 with two
    steps of warm-up, weight decay 0.04 -> 0.4, momentum 0.9 -> 1."""
    model, method = make()
    predictor: Any = method.predictor
    official = {"hidden_token": "mask_token", "embed": "predictor_embed", "blocks": "predictor_blocks",
                "norm": "predictor_norm", "project": "predictor_proj"}  # fmt: skip
    for name, each in model.trunk.named_parameters():
        if each.requires_grad:
            fill([(name, each)], 0.2)
    for name, each in predictor.named_parameters():
        first, *rest = name.split(".")
        fill([(".".join([official[first], *rest]), each)], 0.2)
    method.teacher.attach(model)
    trained = [p for p in (*model.parameters(), *predictor.parameters()) if p.requires_grad]
    decayed = [each for each in trained if each.ndim > 1]
    others = [each for each in trained if each.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}])
    losses = []
    for step, (lr, decay) in enumerate(zip(RATES, DECAYS, strict=True)):
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.param_groups[0]["weight_decay"] = decay
        loss = loss_of(model, method, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.teacher.after_update(Step.alone(where=step / 4))
        losses.append(loss.item())
    assert losses == pytest.approx(OFFICIAL, rel=1e-9)
    weights = [p for p in method.teacher.parameters() if p.shape != model.trunk.pos_embed.shape]
    assert sum(each.abs().sum().item() for each in weights) == pytest.approx(740.1556812826278)


RATES = [0.006, 0.01, 0.005005, 1e-05]
DECAYS = [0.09272077938642143, 0.22, 0.3472792206135786, 0.4]
OFFICIAL = [0.4603250124518998, 0.47041081826553416, 0.4106061663813603, 0.40365910920371967]


def test_weights_that_are_loaded_leave_the_predictor_as_it_is() -> None:
    model, method = make()
    before = copy.deepcopy(method.predictor.state_dict())
    method.attach(model)
    assert all(
        torch.equal(each, before[name]) for name, each in method.predictor.state_dict().items()
    )


def test_larger_images_get_positions_of_their_own() -> None:
    model, method = make()
    large = torch.rand(3, 3, SIDE, 2 * SIDE, dtype=torch.float64)
    sample = {"input": {"data": large, "shown": SHOWN + 16}, "target_blocks": BLOCKS}
    assert loss_of(model, method, sample).isfinite()


def test_a_batch_or_model_of_another_form_is_explained() -> None:
    _, method = make()
    sample = batch()
    with pytest.raises(TrainingError, match="MULTI_INPUT_HEAD_MAPPING"):
        method(torch.zeros(3, WIDTH), sample, Step.alone())
