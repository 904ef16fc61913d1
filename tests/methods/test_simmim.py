from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sslengine.config.resolve import resolve_dict
from sslengine.config.sections import read
from sslengine.errors import ConfigError, DataError, TrainingError
from sslengine.methods.step import Step
from sslengine.methods.whole import Batch
from sslengine.models.options import ModelOptions
from sslengine.models.weights.load import init_method
from tests.config.recipes import recipe
from tests.methods.whole_steps import fill, method_of, parameters_of

SIDE, PATCH, WIDTH = 16, 4, 16
BEIT = {
    "NAME": "beit",
    "BEIT": {
        "IMAGE_SIZE": SIDE, "PATCH_SIZE": PATCH, "NUM_LAYERS": 2, "NUM_HEADS": 2, "HIDDEN_DIM": WIDTH,
        "MLP_RATIO": 2.0, "QKV_BIAS": True, "USE_ABS_POS_EMB": False, "USE_SHARED_REL_POS_BIAS": True,
        "USE_MEAN_POOLING": False, "INIT_VALUES": 0.1,
    },
}  # fmt: skip
VIT = {
    "NAME": "vision_transformer",
    "VISION_TRANSFORMERS": {
        "IMAGE_SIZE": SIDE, "PATCH_SIZE": PATCH, "NUM_LAYERS": 1, "NUM_HEADS": 2,
        "HIDDEN_DIM": WIDTH, "MLP_DIM": WIDTH,
    },
}  # fmt: skip
SWIN = {
    "NAME": "swin_transformer",
    "SWIN_TRANSFORMER": {
        "IMAGE_SIZE": SIDE, "PATCH_SIZE": 2, "EMBED_DIM": 8, "DEPTHS": [1, 1], "NUM_HEADS": [2, 2],
        "WINDOW_SIZE": 2,
    },
}  # fmt: skip
TRUNKS: dict[str, tuple[dict[str, Any], int]] = {
    "beit": (BEIT, PATCH), "vit": (VIT, PATCH), "swin": (SWIN, 2)
}  # fmt: skip


def of_run(trunk: str) -> dict[str, Any]:
    options, patch = TRUNKS[trunk]
    mask = {"name": "RandomPatchMask", "patch_size": patch, "cell_size": PATCH, "ratio": 0.6}
    crop = {"name": "RandomResizedCrop", "size": SIDE}
    return {
        "DATA__TRAIN__TRANSFORMS": [crop, {"name": "ToTensor"}, mask],
        "MODEL__TRUNK": options,
        "MODEL__HEAD__PARAMS": [],
        "LOSS": {"name": "simmim_loss", "stride": PATCH},
    }


def earlier(trunk: str, feature: str) -> dict[str, Any]:
    """The same with heads and routes, as before methods owned their network."""
    return {
        **of_run(trunk),
        "LOSS": {"name": "simmim_loss"},
        "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
        "DATA__TRAIN__INPUT_KEY_NAMES": ["data", "mask"],
        "MODEL__MULTI_INPUT_HEAD_MAPPING": [
            ["data", {"feat_names": [feature], "head_index": 0, "additional_keys": ["mask"]}]
        ],
        "MODEL__HEAD__PARAMS": [["pixel_head", {"in_dim": WIDTH, "stride": PATCH}]],
    }


def batch(step: int = 0, patch: int = PATCH) -> Batch:
    numbers = torch.arange(3 * 3 * SIDE * SIDE, dtype=torch.float64)
    images = (numbers * (0.13 + 0.01 * step)).sin().view(3, 3, SIDE, SIDE)
    cells = (torch.arange(48).view(3, 4, 4) * 7 + step) % 5 < 3
    times = PATCH // patch
    mask = cells.repeat_interleave(times, 1).repeat_interleave(times, 2)
    return Batch({"input": images, "mask": mask})


@pytest.mark.parametrize("trunk", TRUNKS)
def test_loss_and_gradients_are_the_published_ones(trunk: str) -> None:
    """Pixel by pixel: those of hidden cells count, and each channel by itself."""
    method = method_of(**of_run(trunk))
    given, seen = batch(patch=TRUNKS[trunk][1]), []
    method.head.register_forward_hook(lambda head, inputs, made: seen.append(made))
    loss = method(given, Step.alone())
    (output,), images, cells = seen, given.views[0], batch().sample["mask"]
    total, count = output.new_zeros(()), 0
    for number in range(3):
        for place in range(16):
            row, column = divmod(place, 4)
            if not cells[number, row, column]:
                continue
            count += PATCH * PATCH
            square = output[number, place].view(3, PATCH, PATCH)
            for y in range(PATCH):
                for x in range(PATCH):
                    pixel = images[number, :, row * PATCH + y, column * PATCH + x]
                    total = total + (square[:, y, x] - pixel).abs().sum()
    expected = total / (count + 1e-5) / 3
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    (ours,) = torch.autograd.grad(loss, output)
    (theirs,) = torch.autograd.grad(expected, output)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    assert (ours == 0).any()


OFFICIAL = [1.0591183886409878, 0.6717039761457175, 0.6626911531094727, 0.6684930522280602]
GRADIENTS = {
    "encoder.mask_token": 3.0527759986192784,
    "encoder.patch_embed.proj.weight": 0.8894645544676059,
    "encoder.rel_pos_bias.relative_position_bias_table": 0.0581296103779891,
    "decoder.0.weight": 7.762617680645658,
}


def test_four_steps_are_those_of_the_official_code() -> None:
    """microsoft/SimMIM d3e29bc, models/simmim.py and optimizer.py's groups, run on a CPU in float64
    with these images, masks and weights: AdamW at 0.01, weight decay 0.05, clipped at 5."""
    method = method_of(**of_run("beit"))
    names = {"trunk.": "encoder.", "head.pixels.": "decoder.0."}
    named = {}
    for name, each in parameters_of(method).items():
        before = next(filter(name.startswith, names))
        named[names[before] + name.removeprefix(before)] = each
    fill(named.items(), 0.2)
    plain = [p for n, p in named.items() if p.ndim == 1 or n.endswith(".bias") or "cls_token" in n]
    decayed = [each for each in named.values() if not any(each is other for other in plain)]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.05)
    losses = []
    for step in range(4):
        loss = method(batch(step), Step.alone())
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            found = {name: named[name].grad.abs().sum().item() for name in GRADIENTS}
            assert found == pytest.approx(GRADIENTS, rel=1e-9)
        nn.utils.clip_grad_norm_(named.values(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(OFFICIAL, rel=1e-9)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_hidden_patches_are_not_seen(trunk: str) -> None:
    method = method_of(**of_run(trunk))
    given = batch(patch=TRUNKS[trunk][1])
    images, mask = given.views[0], given.sample["mask"]
    away = batch().sample["mask"].repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    changed = torch.where(away.unsqueeze(1), torch.rand_like(images), images)
    one, other = (method.trunk(each, [method.feature], mask=mask) for each in (images, changed))
    assert torch.equal(one[method.feature], other[method.feature])


def test_another_form_is_explained() -> None:
    method = method_of(**{**of_run("vit"), "LOSS": {"name": "simmim_loss", "stride": 2}})
    with pytest.raises(TrainingError, match=r"LOSS\.simmim_loss\.stride"):
        method(batch(), Step.alone())
    with pytest.raises(DataError, match=r"config\.DATA\.TRAIN"):
        method(Batch({"input": batch().views[0]}), Step.alone())
    with pytest.raises(ConfigError, match=r"config\.MODEL\.TRUNK\.NAME"):
        method_of(**{**of_run("vit"), "MODEL__TRUNK": {"NAME": "resnet"}})


def test_the_stride_is_that_of_an_earlier_head_or_of_the_patches() -> None:
    config = resolve_dict(recipe(**earlier("swin", "lastMAP"))).config
    assert config.LOSS.simmim_loss.stride == PATCH
    assert (list(config.MODEL.HEAD.PARAMS), list(config.DATA.TRAIN.INPUT_KEY_NAMES)) == (
        [],
        ["data"],
    )
    alone = {**of_run("vit"), "LOSS": {"name": "simmim_loss"}}
    assert resolve_dict(recipe(**alone)).config.LOSS.simmim_loss.stride == PATCH


def test_weights_of_a_head_of_the_model_are_those_of_the_method(tmp_path: Path) -> None:
    """Of a checkpoint whose model had heads."""
    run, before = earlier("vit", "lastPATCH"), method_of(**of_run("vit"))
    heads = {f"0.{name}": each + 1 for name, each in before.head.state_dict().items()}
    state = {"trunk": before.trunk.trunk.state_dict(), "heads": heads}
    path = tmp_path / "earlier.torch"
    torch.save({"classy_state_dict": {"base_model": {"model": state}, "loss": {}}}, path)
    config = resolve_dict(recipe(**run)).config
    options = read(config, ModelOptions)
    options.WEIGHTS_INIT.PARAMS_FILE = str(path)
    method = method_of(**run)
    init_method(method, options)
    for name, each in method.head.state_dict().items():
        assert torch.equal(each, heads[f"0.{name}"])
