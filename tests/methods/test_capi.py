"""CAPI beside the authors' code, against its formulas, and at two ranks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import ConfigError
from sslengine.methods.base import Step
from sslengine.methods.capi import CapiLoss, CapiOptions, PatchPredictor
from sslengine.methods.whole import Batch
from sslengine.models.options import VisionTransformerOptions
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.vision_transformer import VisionTransformer
from sslengine.models.view_trunk import ViewTrunk
from tests.ranks import RankPool

SIDE, PATCH, WIDTH, CLUSTERS, STEPS = 16, 4, 16, 12, 6
SHOWN = torch.tensor(
    [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 14, 15], [0, 3, 4, 7, 12, 15], [5, 6, 9, 10, 13, 14]]
)
PREDICTED = torch.tensor([[2, 15, 7], [0, 9, 12], [5, 10, 1], [3, 8, 11]])


class Toy(Trunk):
    """The official encoder without blocks: patches, registers, the final norm."""

    feature_names, extra_inputs = ("lastPATCH", "lastBLK"), ("shown",)
    embed_dim, patch_size = WIDTH, PATCH

    def __init__(self) -> None:
        super().__init__()
        self.registers = nn.Parameter(torch.empty(1, 4, WIDTH))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, WIDTH, PATCH, PATCH)})

    def features(self, x: Tensor, wanted: Collection[str], **extra: Tensor) -> dict[str, Tensor]:
        tokens = self.patch_embed["proj"](x).flatten(2).mT
        if "shown" in extra:
            tokens = tokens.gather(1, extra["shown"].unsqueeze(-1).expand(-1, -1, WIDTH))
        tokens = torch.cat([self.registers.expand(len(tokens), -1, -1), tokens], dim=1)
        tokens = F.rms_norm(tokens, (WIDTH,), eps=1e-5)
        return {"lastPATCH": tokens[:, 4:], "lastBLK": tokens}


def borrowed(trunk: Trunk) -> ViewTrunk:
    model: Any = SimpleNamespace(
        trunk=trunk, routes=(), flip_channels=False, single_pass_every_crop=False
    )
    return ViewTrunk(model, WIDTH)


# Our names of parameters, and those of the official code.
OFFICIAL_NAMES = {
    "patch_embed.proj": "backbone.patch_embed", "registers": "backbone.registers",
    "predictor.hidden_token": "backbone.mask_token", "predictor.blocks": "backbone.decoder.blocks",
    ".norm1": ".residual1.norm", ".norm2": ".residual2.norm", ".q.": ".residual1.fn.q_proj.",
    ".k.": ".residual1.fn.k_proj.", ".v.": ".residual1.fn.v_proj.", ".proj.": ".residual1.fn.proj.",
    ".mlp.": ".residual2.fn.", "head.lengths": "head.last_layer.weight_g",
    "head.directions": "head.last_layer.weight_v", "clusters.": "layer.",
}  # fmt: skip


def official(name: str) -> str:
    for ours, theirs in OFFICIAL_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def make(**changes: Any) -> tuple[CapiLoss, dict[str, nn.Parameter]]:
    """In float64, with the weights that the official code was run with."""
    options: dict[str, Any] = {"num_clusters": CLUSTERS, "momentum": 0.9, "predictor_layers": 2}
    model = Toy().double()
    method = CapiLoss(
        CapiOptions(**{**options, "predictor_heads": 2, **changes}), borrowed(model)
    ).double()
    own = {n: each for n, each in method.named_parameters() if not n.startswith("teacher.")}
    trained = {official(name): each for name, each in (*model.named_parameters(), *own.items())}
    start(trained)  # type: ignore[arg-type]
    method.teacher.attach(model)
    return method, trained


def encoder() -> VisionTransformer:
    """The official encoder, as the recipe has it."""
    torch.set_default_dtype(torch.float64)
    try:
        return VisionTransformer(VisionTransformerOptions(
            IMAGE_SIZE=SIDE, PATCH_SIZE=PATCH, HIDDEN_DIM=WIDTH, MLP_DIM=4 * WIDTH, NUM_LAYERS=2,
            NUM_HEADS=2, REGISTER_TOKENS=4, USE_CLASS_TOKEN=False, ROPE="corners_mixed",
            NORM="RMSNorm", PROJ_BIAS=False,
        ))  # fmt: skip
    finally:
        torch.set_default_dtype(torch.float32)


def parts(trunk: VisionTransformer, gradients: bool = False) -> dict[str, Tensor]:
    """Parameters by the official names; of queries, keys and values the rows."""
    names = {"reg_token": "backbone.registers", "blocks": "backbone.encoder.blocks",
             "patch_embed.proj": "backbone.patch_embed", ".norm1": ".residual1.norm",
             ".norm2": ".residual2.norm", ".mlp.": ".residual2.fn.",
             ".attn.proj": ".residual1.fn.proj"}  # fmt: skip
    found = {}
    for name, parameter in trunk.named_parameters():
        each: Any = parameter.grad if gradients else parameter
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        before, of_three, after = name.partition(".attn.qkv.")
        for letter, rows in zip("qkv", each.chunk(3), strict=True) if of_three else [("", each)]:
            found[f"{before}.residual1.fn.{letter}_proj.{after}" if of_three else name] = rows
    return found


def start(parts: dict[str, Tensor]) -> None:
    for name, each in parts.items():
        first = zlib.crc32(name.encode()) % 1000
        wave = (torch.arange(each.numel(), dtype=torch.float64) * 0.7 + first).sin().view_as(each)
        near_1 = name.endswith(("norm.weight", "weight_g"))
        each.data.copy_(1 + 0.1 * wave if near_1 else 0.2 * wave)


def test_four_steps_with_the_official_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, with two blocks in its encoder: rotary positions, RMSNorm, no biases."""
    model = encoder()
    options: dict[str, Any] = {
        "num_clusters": CLUSTERS, "predictor_layers": 2, "predictor_heads": 2,
    }  # fmt: skip
    method = CapiLoss(CapiOptions(**options), borrowed(model)).double()
    own = {official(name): each for name, each in method.named_parameters()
           if not name.startswith("teacher.")}  # fmt: skip
    start({**parts(model), **own})
    method.teacher.attach(model)
    named = {**{f"trunk {name}": each for name, each in model.named_parameters()}, **own}
    groups = []
    for name, each in named.items():
        decay = 0.0 if name.endswith(".bias") else 0.01 if "norm" in name else 0.1
        factor = 0.2 if "patch_embed" in name else 1.0
        if name.startswith("layer."):
            decay, factor = 0.01, 0.5
        groups.append({"params": [each], "weight_decay": decay, "factor": factor})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    found = []
    for step, (lr, momentum) in enumerate(zip((0.01, 0.008, 0.006, 0.004), (0.9, 0.9, 0.95, 0.95), strict=True)):  # fmt: skip
        for group in optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        losses = losses_of(method, batch(step))
        optimizer.zero_grad()
        losses["loss"].backward()
        if step == 0:
            grads: dict[str, Any] = {name: each.grad for name, each in own.items()}
            grads |= parts(model, gradients=True)
            sums = {name: grads[name].abs().sum().item() for name in OF_ENCODER}
            assert sums == pytest.approx(OF_ENCODER, rel=1e-7)
        optimizer.step()
        monkeypatch.setattr(method.teacher, "_momentum_at", lambda where, m=momentum: m)
        method.teacher.after_update(Step.alone())
        found.append([losses[key].item() for key in ("prediction", "clustering")])
    prediction, clustering = zip(*found, strict=True)
    assert prediction == pytest.approx(
        [6.782370994817164, 4.46669078363219, 5.3872252206841615, 3.1417304035432707], rel=1e-6
    )
    assert clustering == pytest.approx(
        [3.390929430998754, 3.069661631670519, 3.3673201548181657, 3.2767679608418456], rel=1e-6
    )
    size = sum(each.abs().sum().item() for each in method.teacher.module.parameters())
    assert size == pytest.approx(953.5728082095105, rel=1e-8)


# Sums of the absolute gradients of the first step.
OF_ENCODER = {
    "backbone.registers": 19.388299202125467,
    "backbone.encoder.blocks.0.residual1.norm.weight": 1.2000881547989846,
    "backbone.encoder.blocks.0.residual1.fn.q_proj.weight": 7.3221427452435055,
    "backbone.encoder.blocks.0.residual1.fn.k_proj.weight": 7.912466216603946,
    "backbone.encoder.blocks.0.residual1.fn.v_proj.weight": 36.43522317302855,
    "backbone.encoder.blocks.0.residual2.fn.fc1.weight": 440.1745002636672,
    "backbone.encoder.blocks.1.residual1.norm.weight": 0.1862737738347437,
    "backbone.encoder.blocks.1.residual1.fn.q_proj.weight": 1.6894047851461838,
    "backbone.encoder.blocks.1.residual1.fn.proj.weight": 79.29573173591629,
    "backbone.encoder.blocks.1.residual2.fn.fc2.weight": 348.8286670540381,
    "backbone.patch_embed.weight": 143.70526626023906,
    "backbone.patch_embed.bias": 12.63923700820202,
    "backbone.decoder.blocks.0.residual1.fn.k_proj.weight": 27.971470999727863,
    "head.last_layer.weight_v": 52.55759656130493,
    "layer.weight": 12.129122503013507,
}


def batch(step: int = 0, mine: slice = slice(None)) -> Batch:
    numbers = torch.arange(4 * 3 * SIDE * SIDE, dtype=torch.float64)
    images = (numbers * (0.13 + 0.01 * step)).sin().view(4, 3, SIDE, SIDE)
    return Batch({"input": images[mine], "shown": SHOWN[mine], "predicted": PREDICTED[mine]})


def losses_of(method: CapiLoss, given: Batch) -> dict[str, Tensor]:
    found: dict[str, Tensor] = method(given, Step.alone())
    return found


@pytest.mark.parametrize("positionwise", [True, False])
def test_six_steps_are_those_of_the_official_code(positionwise: bool) -> None:
    """facebookresearch/capi 98b4fa1: the step of train_capi.py, its groups of parameters, both
    optimizers and schedules, run on a CPU in float64 with these images, patches and weights:
    lr 0 -> 0.01 -> 0.01 * 0.095 with two steps of warm-up, weight decay 0.1, momentum 0.9.
    """
    method, trained = make(positionwise=positionwise)
    clusters = method.multipliers()["clusters.*"]
    groups = []
    for name, each in trained.items():
        norm, bias = "norm" in name, name.endswith(".bias")
        decay, factor = 0.0 if bias else 0.01 if norm else 0.1, 0.2 if "patch_embed" in name else 1
        if name.startswith("layer."):
            decay, factor = 0.1 * clusters.weight_decay, clusters.lr
        groups.append({"params": [each], "weight_decay": decay, "factor": factor})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    found = []
    for step, share in enumerate(SHARES):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (step > 0) * share * group["factor"]
        losses = losses_of(method, batch(step))
        optimizer.zero_grad()
        losses["loss"].backward()
        if step == 0 and positionwise:
            gradients = {n: each.grad.abs().sum().item() for n, each in trained.items() if each.grad is not None}  # fmt: skip
            assert gradients == pytest.approx(GRADIENTS, rel=1e-7)
        optimizer.step()
        method.teacher.after_update(Step.alone(where=WHERE[step]))
        found.append([losses[key].item() for key in ("prediction", "clustering")])
    expected, size = OFFICIAL[positionwise]
    for ours, theirs in zip(zip(*found, strict=True), expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-7)
    weights = method.teacher.parameters()
    assert sum(each.abs().sum().item() for each in weights) == pytest.approx(size, rel=1e-9)


# Of the schedules after the warm-up: (1 + cos(0.8 pi i / 4)) / 2.
SHARES = [0.0, 1.0, *((1 + math.cos(0.8 * math.pi * i / 4)) / 2 for i in range(4))]
WHERE = [0.0, *(0.1 + 0.9 * i / 4 for i in (0, 0, 1, 2, 3))]
# Prediction and clustering losses of each step; the sum of the teacher's weights at the end.
OFFICIAL: dict[bool, tuple[list[list[float]], float]] = {
    True: ([
        [
            5.51230910515837, 5.228955597390031, 4.140547601571162,
            3.5545265232293026, 2.9379524067683565, 2.9278874954637764,
        ],
        [
            3.32289820413867, 3.1260151478778933, 3.221673905910925,
            3.1070804396585494, 2.847767875648809, 3.139726069758474,
        ],
    ], 107.9904114513701),
    False: ([
        [
            5.6124494583807305, 5.129712855889967, 3.972592337803763,
            4.608102447294335, 4.072917850077605, 3.3669311231505943,
        ],
        [
            3.231927271473266, 3.07980838787459, 3.1923830598222085,
            3.0656085238082973, 2.8054599900850645, 2.5890442667101383,
        ],
    ], 108.02136864716238),
}  # fmt: skip
# Sums of the absolute gradients of the first step.
GRADIENTS = {
    "backbone.mask_token": 10.438689314320198,
    "backbone.registers": 22.87778130858841,
    "backbone.decoder.blocks.0.residual1.norm.weight": 0.3494129013856698,
    "backbone.decoder.blocks.0.residual1.fn.q_proj.weight": 18.84452922864311,
    "backbone.decoder.blocks.0.residual1.fn.k_proj.weight": 20.8209200368456,
    "backbone.decoder.blocks.0.residual1.fn.v_proj.weight": 78.06445393289832,
    "backbone.decoder.blocks.0.residual1.fn.proj.weight": 229.73812472502502,
    "backbone.decoder.blocks.0.residual2.norm.weight": 1.5161860190046998,
    "backbone.decoder.blocks.0.residual2.fn.fc1.weight": 463.09210740451124,
    "backbone.decoder.blocks.0.residual2.fn.fc2.weight": 295.9839675480147,
    "backbone.decoder.blocks.1.residual1.norm.weight": 0.8677220494860093,
    "backbone.decoder.blocks.1.residual1.fn.q_proj.weight": 25.282198861987276,
    "backbone.decoder.blocks.1.residual1.fn.k_proj.weight": 15.34203584792279,
    "backbone.decoder.blocks.1.residual1.fn.v_proj.weight": 50.182816224649045,
    "backbone.decoder.blocks.1.residual1.fn.proj.weight": 172.8248886496868,
    "backbone.decoder.blocks.1.residual2.norm.weight": 1.3633286907522462,
    "backbone.decoder.blocks.1.residual2.fn.fc1.weight": 427.1557871303994,
    "backbone.decoder.blocks.1.residual2.fn.fc2.weight": 423.70132935350915,
    "backbone.patch_embed.weight": 18.619134089655308,
    "backbone.patch_embed.bias": 1.1033185465930417,
    "head.last_layer.weight_g": 4.192174396910139,
    "head.last_layer.weight_v": 40.87373300386321,
    "layer.weight": 9.986641988073272,
    "layer.bias": 9.39432534412875,
}


def test_gradients_go_where_the_method_says() -> None:
    method, _ = make()
    losses = losses_of(method, batch())
    own = [*method.clusters.parameters()]
    others = [
        *method.trunk.trunk.parameters(),
        *method.predictor.parameters(),
        *method.head.parameters(),
    ]
    for loss, reached, left in (("clustering", own, others), ("prediction", others, own)):
        grads = torch.autograd.grad(losses[loss], [*reached, *left], allow_unused=True, retain_graph=True)  # fmt: skip
        assert all(each is not None for each in grads[: len(reached)])
        assert all(each is None for each in grads[len(reached) :])
    assert all(not each.requires_grad for each in method.teacher.parameters())


def test_targets_have_the_authors_1e_8_in_each_sum() -> None:
    """A patch that is far from each cluster has targets that sum to less than 1."""
    method, _ = make(positionwise=False)
    with torch.no_grad():
        method.clusters.weight.mul_(200)
        images = batch().views[0]
        tokens = method.teacher(images, ["lastPATCH"])["lastPATCH"]
        scores = method.clusters(F.normalize(tokens, dim=-1)).flatten(0, 1) / 0.06
        expected = (scores - scores.amax(0) + 50).exp()
        for _ in range(3):
            expected = expected / (expected.sum(0) + 1e-8)
            expected = expected / (expected.sum(1, keepdim=True) + 1e-8)
        q, _ = method._clustered(images)
    assert expected.sum(1).min() < 0.9
    torch.testing.assert_close(q.flatten(0, 1), expected, rtol=1e-8, atol=1e-12)


def test_targets_of_the_position_alone_say_nothing_of_the_image() -> None:
    """Equal images: the same targets for all, at each position; other images: other targets."""
    method, _ = make(positionwise=False)
    given = batch()
    several = losses_of(method, given)["image_information"].item()
    given.views = [given.views[0][:1].expand(4, -1, -1, -1)]
    assert losses_of(method, given)["image_information"].item() == pytest.approx(0, abs=1e-12)
    assert 0.1 < several < math.log(4)


def _on_rank(positionwise: bool) -> tuple[list[Tensor], list[Tensor]]:
    share = 4 // world_size()
    mine = slice(rank() * share, rank() * share + share)
    method, trained = make(positionwise=positionwise)
    losses = losses_of(method, batch(0, mine))
    losses["loss"].backward()
    grads = [each.grad for each in trained.values() if each.grad is not None]
    return [losses[key].detach() for key in ("prediction", "clustering")], grads


@pytest.mark.parametrize("pool", [2, pytest.param(4, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("positionwise", [True, False])
def test_ranks_equal_one_process(positionwise: bool, pool: RankPool) -> None:
    expected = _on_rank(positionwise)
    for number, part in enumerate(expected):
        found = [each[number] for each in pool.run(_on_rank, positionwise)]
        for one, *theirs in zip(part, *found, strict=True):
            torch.testing.assert_close(torch.stack(theirs).mean(0), one, rtol=1e-9, atol=1e-12)


def test_what_cannot_be_used_is_refused() -> None:
    with pytest.raises(ConfigError, match="predictor_heads: 3 heads of tokens of width 16"):
        PatchPredictor(CapiOptions(predictor_heads=3), WIDTH)
