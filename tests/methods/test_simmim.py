from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sslengine.config.facts import RunFacts
from sslengine.config.resolve import resolve_dict
from sslengine.config.sections import read
from sslengine.errors import ConfigError, TrainingError
from sslengine.methods.simmim import PixelHead, SimMimLoss, SimMimOptions
from sslengine.methods.step import Step
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from tests.config.recipes import recipe
from tests.methods.whole_steps import fill

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
HEAD = ["pixel_head", {"in_dim": WIDTH, "stride": PATCH}]
TRUNKS: dict[str, tuple[dict[str, Any], str, int]] = {
    "beit": (BEIT, "lastPATCH", PATCH), "vit": (VIT, "lastPATCH", PATCH), "swin": (SWIN, "lastMAP", 2)
}  # fmt: skip


def of_run(trunk: str) -> dict[str, Any]:
    options, feature, patch = TRUNKS[trunk]
    mask = {"name": "RandomPatchMask", "patch_size": patch, "cell_size": PATCH, "ratio": 0.6}
    crop = {"name": "RandomResizedCrop", "size": SIDE}
    return {
        "DATA__TRAIN__TRANSFORMS": [crop, {"name": "ToTensor"}, mask],
        "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
        "DATA__TRAIN__INPUT_KEY_NAMES": ["data", "mask"],
        "MODEL__TRUNK": options,
        "MODEL__MULTI_INPUT_HEAD_MAPPING": [
            ["data", {"feat_names": [feature], "head_index": 0, "additional_keys": ["mask"]}]
        ],
        "MODEL__HEAD__PARAMS": [HEAD],
        "LOSS": {"name": "simmim_loss"},
    }


def make(trunk: str) -> tuple[nn.Module, SimMimLoss]:
    torch.manual_seed(0)
    config = resolve_dict(recipe(**of_run(trunk))).config
    model = build_model(read(config, ModelOptions)).double()
    return model, SimMimLoss(SimMimOptions(stride=PATCH), RunFacts())


def batch(step: int = 0, patch: int = PATCH) -> dict[str, Any]:
    numbers = torch.arange(3 * 3 * SIDE * SIDE, dtype=torch.float64)
    images = (numbers * (0.13 + 0.01 * step)).sin().view(3, 3, SIDE, SIDE)
    cells = (torch.arange(48).view(3, 4, 4) * 7 + step) % 5 < 3
    times = PATCH // patch
    mask = cells.repeat_interleave(times, 1).repeat_interleave(times, 2)
    return {"input": {"data": images, "mask": mask}}


@pytest.mark.parametrize("trunk", TRUNKS)
def test_loss_and_gradients_are_the_published_ones(trunk: str) -> None:
    """Pixel by pixel: those of hidden cells count, and each channel by itself."""
    model, method = make(trunk)
    sample = batch(patch=TRUNKS[trunk][2])
    output = model(sample["input"])[0].detach().requires_grad_()
    loss = method(output, sample, Step.alone())
    images, cells = sample["input"]["data"], batch()["input"]["mask"]
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
    model, method = make("beit")
    named = {f"encoder.{n}": each for n, each in model.trunk.named_parameters()}  # type: ignore[union-attr]
    pixels: Any = model.heads[0].pixels  # type: ignore[index, union-attr]
    named |= {"decoder.0.weight": pixels.weight, "decoder.0.bias": pixels.bias}
    fill(named.items(), 0.2)
    plain = [p for n, p in named.items() if p.ndim == 1 or n.endswith(".bias") or "cls_token" in n]
    decayed = [each for each in named.values() if not any(each is other for other in plain)]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.05)
    losses = []
    for step in range(4):
        sample = batch(step)
        loss = method(model(sample["input"])[0], sample, Step.alone())
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
    model, _ = make(trunk)
    given = batch(patch=TRUNKS[trunk][2])["input"]
    away = batch()["input"]["mask"].repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    noise = torch.rand_like(given["data"])
    changed = torch.where(away.unsqueeze(1), noise, given["data"])
    assert torch.equal(model({**given, "data": changed})[0], model(given)[0])


def test_another_form_is_explained() -> None:
    _, method = make("vit")
    sample = batch()
    with pytest.raises(TrainingError, match="A stride of 4 fits a trunk"):
        method(torch.zeros(3, 4, 48), sample, Step.alone())
    with pytest.raises(ConfigError, match=r"shape \(2, 16\)"):
        PixelHead(WIDTH)(torch.zeros(2, WIDTH))
    with pytest.raises(ConfigError, match="needs pixel_head"):
        resolve_dict(
            recipe(**{**of_run("vit"), "MODEL__HEAD__PARAMS": [["mlp", {"dims": [16, 8]}]]})
        )


def test_the_stride_is_that_of_the_head() -> None:
    assert resolve_dict(recipe(**of_run("swin"))).config.LOSS.simmim_loss.stride == PATCH
