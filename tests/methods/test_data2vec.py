from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.launch.cli import main
from sslengine.methods.step import Step
from sslengine.methods.whole import Batch
from tests.methods.test_simmim import BEIT, PATCH, SIDE, VIT, WIDTH
from tests.methods.test_simmim import batch as batch_of
from tests.methods.whole_steps import fill, method_of, parameters_of

BLOCKS = 2
TRUNKS: dict[str, dict[str, Any]] = {
    "beit": BEIT,
    "vit": {**VIT, "VISION_TRANSFORMERS": {**VIT["VISION_TRANSFORMERS"], "NUM_LAYERS": BLOCKS}},
}


def of_run(trunk: dict[str, Any], **options: Any) -> dict[str, Any]:
    mask = {"name": "MaskedImageModeling", "patch_size": PATCH, "pred_ratio_mean": [0.6]}
    return {
        "DATA__TRAIN__TRANSFORMS": [
            {"name": "RandomResizedCrop", "size": SIDE}, {"name": "ToTensor"}, mask
        ],
        "MODEL__TRUNK": trunk,
        "MODEL__HEAD__PARAMS": [],
        "LOSS": {"name": "data2vec_loss", "top_layers": BLOCKS, **options},
    }  # fmt: skip


def make(trunk: str, **options: Any) -> Any:
    """In float64; the teacher has other weights than the trunk."""
    method = method_of(**of_run(TRUNKS[trunk], **options))
    with torch.no_grad():
        for parameter in (*method.trunk.trunk.parameters(), *method.parameters()):
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return method


def batch() -> Batch:
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(3, 3, SIDE, SIDE, generator=draw, dtype=torch.float64)
    return Batch({"input": images, "mask": torch.rand(3, 4, 4, generator=draw) < 0.5})


def through(trunk: Any, images: Tensor, mask: Tensor | None) -> tuple[list[Tensor], Tensor]:
    """The output of each block, and the last after the norm: all tokens."""
    tokens = trunk.patch_embed.proj(images).flatten(2).mT
    if mask is not None:
        tokens = torch.where(mask.flatten(1).unsqueeze(-1), trunk.mask_token, tokens)
    tokens = torch.cat([trunk.cls_token.expand(len(images), -1, -1), tokens], dim=1)
    if trunk.pos_embed is not None:
        tokens = tokens + trunk.pos_embed
    shared = getattr(trunk, "rel_pos_bias", None)
    more = {} if shared is None else {"shared_rel_pos_bias": shared()}
    outputs = []
    for block in trunk.blocks:
        tokens = block(tokens, **more)
        outputs.append(tokens)
    return outputs, trunk.norm(tokens)


@pytest.mark.parametrize(("trunk", "beta"), [("beit", 2.0), ("vit", 0.5), ("vit", 0.0)])
def test_loss_and_gradients_are_the_published_ones(trunk: str, beta: float) -> None:
    method, given = make(trunk, beta=beta), batch()
    loss = method(given, Step.alone())
    images, mask = given.views[0], given.sample["mask"]
    with torch.no_grad():
        outputs, _ = through(method.teacher.module.trunk, images, None)
    mean = (outputs[0] + outputs[1]) / 2
    _, tokens = through(method.trunk.trunk, images, mask)
    terms = []
    for image, place in mask.flatten(1).nonzero().tolist():
        target = mean[image, 1 + place]
        target = (target - target.mean()) / (target.var(unbiased=False) + 1e-5).sqrt()
        apart = (tokens[image, 1 + place] - target).abs()
        if beta:
            apart = torch.where(apart < beta, apart**2 / (2 * beta), apart - beta / 2)
        else:
            apart = apart**2
        terms.append(apart.sum() / WIDTH**0.5)
    assert 10 < len(terms) < 40
    expected = torch.stack(terms).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    trained = parameters_of(method)
    ours = torch.autograd.grad(loss, list(trained.values()))
    theirs = torch.autograd.grad(expected, list(trained.values()))
    for name, one, two in zip(trained, ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12, msg=f"{name}: {one - two}")


# By beta: the loss of each step; the squared norms of the teacher's blocks and of the model at the end.
OFFICIAL = {
    2.0: (
        [1.4907980734799666, 1.5432650377561514, 1.2663616036325451, 1.3247339003676104,
         1.478658540142559],
        [311.9532025073263, 332.81759166923075],
    ),
    0.0: (
        [6.033499864175902, 6.283279923487497, 5.091781863089198, 5.271758927764875,
         5.9865592323890455],
        [311.645297063812, 329.18999312610873],
    ),
}  # fmt: skip
# Sums of the absolute gradients of the first step, with beta 2.
GRADIENTS = {
    "cls_emb": 0.1372025103736494,
    "mask_emb": 3.27082252051869,
    "patch_embed.conv.weight": 1.044312613060444,
    "encoder.rel_pos_bias.relative_position_bias_table": 0.040812585343654326,
    "encoder.blocks.1.gamma_1": 0.45364017761736336,
    "encoder.blocks.1.attn.qkv.weight": 3.769620564593841,
    "encoder.blocks.1.mlp.2.weight": 15.190912132169329,
}
OFFICIAL_NAMES = {
    "patch_embed.proj": "patch_embed.conv", "cls_token": "cls_emb", "mask_token": "mask_emb",
    "blocks.": "encoder.blocks.", "rel_pos_bias.": "encoder.rel_pos_bias.", "norm.": "encoder.norm.",
    "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.2",
}  # fmt: skip


@pytest.mark.parametrize("beta", OFFICIAL)
def test_five_steps_are_those_of_the_official_code(beta: float) -> None:
    """facebookresearch/fairseq 3d262bb, examples/data2vec/models/data2vec_vision.py with its EMAModule,
    run on a CPU in float64 with these images, masks and weights: AdamW at 0.01 with weight decay 0.05 on
    all, clipped at 3, momentum 0.9 to 0.98. It counts the update that was made in that schedule.
    Its MLPs have four times the width, whatever is configured, and its norms torch's epsilon; timm's Beit
    has 1e-6.
    """
    beit = {"NAME": "beit", "BEIT": {**BEIT["BEIT"], "NUM_LAYERS": 3, "MLP_RATIO": 4.0}}
    method = method_of(**of_run(beit, momentum=0.9, momentum_end=0.98, beta=beta))
    trunk: Any = method.trunk.trunk
    for each in trunk.modules():
        if isinstance(each, nn.LayerNorm):
            each.eps = 1e-5
    named = {}
    for name, parameter in trunk.named_parameters():
        for ours, theirs in OFFICIAL_NAMES.items():
            name = name.replace(ours, theirs) if name.startswith(ours) or ".mlp" in name else name
        named[name] = parameter
    fill(named.items(), 0.2)
    method.teacher.attach(trunk)
    optimizer = torch.optim.AdamW(named.values(), lr=1e-2, weight_decay=0.05)
    expected, norms = OFFICIAL[beta]
    losses = []
    for step in range(5):
        loss = method(batch_of(step), Step.alone())
        optimizer.zero_grad()
        loss.backward()
        if step == 0 and beta:
            found = {name: named[name].grad.abs().sum().item() for name in GRADIENTS}
            assert found == pytest.approx(GRADIENTS, rel=1e-9)
        nn.utils.clip_grad_norm_(named.values(), 3.0)
        optimizer.step()
        method.teacher.after_update(Step.alone(where=(step + 1) / 5))
        losses.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-9)
    averaged: Any = method.teacher.module.trunk
    parts = [averaged.blocks, averaged.norm, averaged.rel_pos_bias]
    of_teacher = sum(p.square().sum().item() for part in parts for p in part.parameters())
    of_model = sum(p.square().sum().item() for p in named.values())
    assert [of_teacher, of_model] == pytest.approx(norms, rel=1e-9)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_blocks_are_averaged_and_the_rest_is_the_models(trunk: str) -> None:
    """Half way from 0.9 to 0.98 along a line."""
    method = make(trunk, momentum=0.9, momentum_end=0.98)
    before = {name: each.clone() for name, each in method.teacher.module.named_parameters()}
    method.teacher.after_update(Step.alone(where=0.5))
    new = parameters_of(method)
    rest = set()
    for name, each in method.teacher.module.named_parameters():
        averaged = 0.94 * before[name] + 0.06 * new[name]
        if torch.equal(each, new[name]):
            rest.add(name.split(".")[1])
        else:
            torch.testing.assert_close(each, averaged)
    positions = {"pos_embed"} if trunk == "vit" else set()
    assert rest == {"patch_embed", "cls_token", "mask_token", *positions}


def test_too_few_blocks_are_refused() -> None:
    for trunk, layers in (("vit", 3), ("beit", 4)):
        with pytest.raises(ConfigError, match=r"config\.LOSS\.data2vec_loss\.top_layers"):
            make(trunk, top_layers=layers)


def test_images_one_patch_wide_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [
        f"config.{each}=8"
        for each in ("MODEL.TRUNK.VISION_TRANSFORMERS.IMAGE_SIZE", "DATA.TRAIN.TRANSFORMS.0.size")
    ]
    assert main(["config=quickstart/data2vec", *small, f"config.CHECKPOINT.DIR={tmp_path}"]) == 2
    said = "images of 8 x 8 pixels have 1 x 1 patches, and none can be hidden: "
    assert said in capsys.readouterr().err
